package dialect

import "testing"

func TestLookup(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions":       "/v1/chat/completions",
		"/v1/files/a":                "/v1/*",
		"/v1/../flush_cache":         "",
		"/v1/models/./x":             "",
		"/flush_cache":               "",
		"/load_lora_adapter":         "",
		"/v1/load_lora_adapter":      "",
		"/v1/unload_lora_adapter/":   "",
		"/api/pull":                  "",
		"//v1/chat/completions":      "",
		"/v1/chat/completions/":      "/v1/*",
		"/api/generate":              "/api/generate",
		"/v1":                        "",
		"/v1/models/org/name..v2.0":  "/v1/*",
		"/v1/audio/transcriptions":   "/v1/*",
		"/v1/messages/count_tokens":  "/v1/messages/count_tokens",
		"/completion":                "/completion",
		"/v1/models":                 "/v1/*",
		"/detokenize":                "/detokenize",
		"/V1/chat/completions":       "",
		"/v1/chat/../../flush_cache": "",
	} {
		if e, ok := Lookup(path); e.Route != want || ok != (want != "") {
			t.Errorf("%s is %q, %v, want %q", path, e.Route, ok, want)
		}
	}
}

func endpoint(t interface {
	Helper()
	Fatalf(string, ...any)
}, path string,
) Endpoint {
	t.Helper()
	e, ok := Lookup(path)
	if !ok {
		t.Fatalf("%s is unknown", path)
	}
	return e
}
