package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

type modelEntry struct {
	ID       string   `json:"id"`
	Max      int      `json:"max_model_len"`
	Of       string   `json:"of"`
	ServedBy []string `json:"served_by"`
}

func modelsOf(t *testing.T, r reply) []modelEntry {
	t.Helper()
	var list struct{ Data []modelEntry }
	if err := json.Unmarshal(r.body, &list); err != nil || r.status != 200 {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
	return list.Data
}

// A cluster serves the models of all its nodes, through each of them.
func TestModelsOfTheCluster(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		var aliased string
		c := newCluster(t, 3, func(name string) http.RoundTripper {
			e := s.engineOf(name)
			s[name].models = []string{"m-test"}
			if name == "n3" {
				s[name].models = []string{"m-2"}
				s[name].seen = func(_ *http.Request, body []byte) { aliased = string(body) }
			}
			return e
		}, func(c *Config) {
			if c.Node.Name == "n3" {
				c.Aliases = map[string]string{"a-much-longer-name": "m-2"}
			}
		})
		time.Sleep(time.Second)
		got := modelsOf(t, c.do(t.Context(), "n1", http.MethodGet, "/v1/models", ""))
		if len(got) != 3 || got[0].ID != "m-test" || got[0].Of != "n1" || got[0].Max != 4096 || !slices.Equal(got[0].ServedBy, []string{"n1", "n2"}) ||
			got[1].ID != "a-much-longer-name" || got[2].ID != "m-2" || got[2].Of != "n3" || !slices.Equal(got[2].ServedBy, []string{"n3"}) {
			t.Errorf("models: %+v", got)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/v1/models/m-2", ""); r.status != 200 || !strings.Contains(string(r.body), `"id":"m-2"`) {
			t.Errorf("one model: %d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/v1/models/nope", ""); r.status != 404 || code(t, r) != "model_not_found" {
			t.Errorf("no model: %d %s", r.status, r.body)
		}
		ask := func(model string) reply {
			return c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", ` {"seed":9007199254740993, "model" : "`+model+`" ,"prompt":"x<"}  `)
		}
		if r := ask("m-2"); r.status != 200 || r.header.Get(nodeHeader) != "n3" {
			t.Errorf("m-2 from %s: %d %s", r.header.Get(nodeHeader), r.status, r.body)
		}
		if r := ask("a-much-longer-name"); r.status != 200 || aliased != ` {"seed":9007199254740993, "model" : "m-2" ,"prompt":"x<"}  ` {
			t.Errorf("an alias: %d, the engine saw %s", r.status, aliased)
		}
		served := s["n1"].count() + s["n2"].count() + s["n3"].count()
		if r := ask("nope"); r.status != 404 || code(t, r) != "model_not_found" || !strings.Contains(string(r.body), "m-2, m-test") {
			t.Errorf("unknown: %d %s", r.status, r.body)
		}
		if now := s["n1"].count() + s["n2"].count() + s["n3"].count(); now != served {
			t.Error("an engine was asked for a model that nobody serves")
		}
		c.kill("n3")
		time.Sleep(5 * time.Second)
		if got := modelsOf(t, c.do(t.Context(), "n1", http.MethodGet, "/v1/models", "")); len(got) != 1 {
			t.Errorf("after n3 died: %+v", got)
		}
		if r := ask("m-2"); r.status != 404 {
			t.Errorf("of a dead node: %d %s", r.status, r.body)
		}
	})
}

// A peer that takes its time with its list of models is gone without.
func TestSlowPeerInModels(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, func(name string) http.RoundTripper {
			e := s.engineOf(name)
			s[name].models = []string{"m-" + name}
			return e
		})
		time.Sleep(time.Second)
		s["n2"].set(func(b *behaviour) {
			b.sick = func(http.ResponseWriter) bool { time.Sleep(4 * time.Second); return false }
		})
		begun := time.Now()
		got := modelsOf(t, c.do(t.Context(), "n1", http.MethodGet, "/v1/models", ""))
		if len(got) != 2 || got[1].ID != "m-n2" || time.Since(begun) > modelsWait {
			t.Errorf("after %v: %+v", time.Since(begun), got)
		}
	})
}

// What an engine lists is read up to thousands of adapters; where it lists none, the
// operator is told what to do.
func TestListsOfModels(t *testing.T) {
	entry := `{"id":"adapter-%04d","parent":"m","root":"` + strings.Repeat("/models", 50) + `"}`
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf(entry, i))
	}
	for _, tc := range []struct {
		status int
		page   string
		models int
		err    string
	}{
		{200, `{"data":[` + strings.Join(many, ",") + `]}`, 5000, ""},
		{200, `{"data":[{"id":"m"}]}` + strings.Repeat(" ", 5<<20), 0, "have it list fewer"},
		{200, `{"data":null}`, 0, "have it load one"},
		{200, `<html>`, 0, "give as --engine the base URL of an OpenAI server"},
		{307, ``, 0, "give as --engine the URL that it leads to"},
		{404, ``, 0, ""},
	} {
		resp := &http.Response{StatusCode: tc.status, Header: http.Header{"Location": {"http://other/v1/models"}}, Body: io.NopCloser(strings.NewReader(tc.page))}
		models, err := readModels(resp)
		if len(models) != tc.models || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%d %.40s: %d models, %v", tc.status, tc.page, len(models), err)
		}
	}
}
