package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// corpus seeds every fuzz target: what the engines' clients send, and what they
// should not.
var corpus = []string{
	`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"a":1}]}],"tools":[{"b":1,"a":[2,{}]}]}`,
	`{"prompt":[[1,2],[3]],"max_tokens":7,"temperature":0}`,
	`{"prompt":"Once\u000a","max_tokens":7,"temperature":0.0e3,"stream":true}`,
	`{"messages":[{"role":"user","content":"\ud83d\ude00\ud83d \u0000 \/ <b>é"}],"temperature":0}`,
	`{"messages":[{"content":"a","role":"b","content":null}],"messages":[],"Model":"a","stream":null}`,
	` {"a" : [ 1 , -0.5e+10, true,false , null ,"" , {} , [ ] ] } `,
	`{"a":1,"a":2,"\u0061":3,"cache_control":4,"data":"` + strings.Repeat("A", 80) + `","u":"data:x"}`,
	`{"data":"` + strings.Repeat(`\u0041`, 50) + `","u":"\u0064ata:` + strings.Repeat(`\u0041`, 80) + `"}`,
	`{"data":"\u0022\\","data2":"data:\"\\\n\/"}`,
	"{\"a\":\"\xff\xed\xa0\x80\"}", "\ufeff{}", `{"a":NaN}`, `[1,]`, `{"a":"\ud8"}`, `"\`, `01`, `-`, `1e`, `{"a":tru}`, `[[[[]]]]`, `{}{}`, "", " ",
	`{"a":[NaN,-Infinity,Infinity],"temperature":-NaN}`, `{"a":Inf}`, "\ufeff\ufeff{}", " \ufeff{}",
	strings.Repeat("[", DepthMax+1) + strings.Repeat("]", DepthMax+1),
	strings.Repeat("[", DepthMax) + strings.Repeat("]", DepthMax),
}

func seed(f *testing.F) {
	f.Helper()
	for _, body := range corpus {
		f.Add(body)
	}
}

// FuzzParse: what encoding/json takes for JSON is JSON here, and nothing else,
// except that DepthMax is lower and what Python's json takes besides is taken. The
// index says where everything ends.
func FuzzParse(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, body string) {
		var d doc
		err := d.parse([]byte(body))
		valid := json.Valid([]byte(body))
		if (err == nil) != valid && !errors.Is(err, ErrDepth) && (valid || !beyond(body)) {
			t.Fatalf("%q: %v, encoding/json says %v", body, err, valid)
		}
		if err != nil || !valid {
			return
		}
		root := d.root()
		if got, want := string(d.raw(root)), strings.Trim(body, " \n\r\t"); got != want {
			t.Fatalf("%q was taken for %q", want, got)
		}
		if next := root.next; next != len(d.boxes) {
			t.Fatalf("%q has %d boxes, of which %d are within it", body, len(d.boxes), next)
		}
		var list []json.RawMessage
		_ = json.Unmarshal([]byte(body), &list)
		n := 0
		for v := range d.elements(root) {
			if got := d.raw(v); string(got) != string(list[n]) {
				t.Fatalf("element %d is %q, want %q", n, got, list[n])
			}
			n++
		}
		if n != len(list) {
			t.Fatalf("%q has %d elements, want %d", body, n, len(list))
		}
		var object map[string]json.RawMessage
		_ = json.Unmarshal([]byte(body), &object)
		last := map[string]string{}
		for key, v := range d.members(root) {
			last[string(key)] = string(d.raw(v))
		}
		if strings.ContainsRune(keys(object), utf8.RuneError) {
			return // encoding/json makes one of what is not UTF-8 and of lone surrogates; here they stay apart
		}
		for key, v := range object {
			if last[key] != string(v) {
				t.Fatalf("%q holds %q, want %q", key, last[key], v)
			}
		}
		if len(last) != len(object) {
			t.Fatalf("%q has keys %q, want %q", body, last, object)
		}
	})
}

// beyond says whether a body may be more than RFC 8259 allows, and JSON here.
func beyond(body string) bool {
	return strings.HasPrefix(body, bom) || strings.Contains(body, "NaN") || strings.Contains(body, "Infinity")
}

func keys(object map[string]json.RawMessage) (all string) {
	for key := range object {
		all += key
	}
	return all
}

// FuzzCanonical: the canonical form means what the value means, and is its own.
func FuzzCanonical(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, body string) {
		var d, again doc
		if d.parse([]byte(body)) != nil {
			return
		}
		got := d.appendCanonical(nil, d.root())
		if err := again.parse(got); err != nil {
			t.Fatalf("%q is written as %q: %v", body, got, err)
		}
		if twice := again.appendCanonical(nil, again.root()); !bytes.Equal(got, twice) {
			t.Fatalf("%q is written as %q, then as %q", body, got, twice)
		}
		if !json.Valid([]byte(body)) {
			return // see FuzzParse
		}
		want, have := decode(t, []byte(body)), decode(t, got)
		if plain, _ := json.Marshal(want); bytes.ContainsRune(plain, utf8.RuneError) {
			return // see FuzzParse
		}
		if want = reference(want, false); !reflect.DeepEqual(want, have) {
			t.Fatalf("%q is written as %q", body, got)
		}
	})
}

func decode(t *testing.T, body []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// reference is what appendCanonical leaves out and names, on decoded values.
func reference(v any, media bool) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "cache_control")
		for key, m := range v {
			v[key] = reference(m, key == "data")
		}
	case []any:
		for i, m := range v {
			v[i] = reference(m, false)
		}
	case string:
		quoted := appendQuoted(nil, v)
		if text := quoted[1 : len(quoted)-1]; len(text) >= mediaMin && (media || strings.HasPrefix(v, "data:")) {
			return string(appendName(nil, text))
		}
	}
	return v
}

// FuzzRead: for any body the fields are those that encoding/json finds, and the
// prompt of a plain chat is what it would make of it.
func FuzzRead(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, body string) {
		for path := range endpoints {
			first, err := Read(endpoint(t, path), []byte(body))
			second, err2 := Read(endpoint(t, path), []byte(body))
			if (err == nil) != (err2 == nil) || !reflect.DeepEqual(first, second) {
				t.Fatalf("%s: two readings of %q differ", path, body)
			}
		}
		r, err := Read(endpoint(t, chat), []byte(body))
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(body), &object) != nil || object == nil {
			if err == nil && !beyond(body) {
				t.Fatalf("%q is read", body)
			}
			return
		}
		if err != nil {
			if !errors.Is(err, ErrDepth) && !errors.Is(err, ErrDuplicateModel) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		var model string
		if m := object["model"]; len(m) > 0 && m[0] == '"' {
			_ = json.Unmarshal(m, &model)
			if at := body[r.ModelAt.From:r.ModelAt.To]; at != string(m) {
				t.Fatalf("model %q, want %q", at, m)
			}
		}
		if strings.ToValidUTF8(r.Model, "") != strings.ReplaceAll(model, "\ufffd", "") && !strings.Contains(r.Model, "\ufffd") {
			t.Fatalf("model %q, want %q", r.Model, model)
		}
		if r.Stream != (string(object["stream"]) == "true") {
			t.Fatalf("%q streams: %v", body, r.Stream)
		}
		if want, ok := plainChat(object); ok && string(r.Text) != want {
			t.Fatalf("%q reads %q, want %q", body, r.Text, want)
		}
		if r.Greedy {
			var x float64
			if json.Unmarshal(object["temperature"], &x) != nil || x != 0 {
				t.Fatalf("%q is read as greedy", body)
			}
		}
	})
}

// plainChat renders a chat by encoding/json, if it is of roles and texts alone.
func plainChat(object map[string]json.RawMessage) (text string, ok bool) {
	for key := range object {
		if key != "model" && key != "messages" && key != "temperature" && key != "max_tokens" {
			return "", false
		}
	}
	var messages []map[string]any
	if json.Unmarshal(object["messages"], &messages) != nil {
		return "", false
	}
	for _, m := range messages {
		role, ok1 := m["role"].(string)
		content, ok2 := m["content"].(string)
		if !ok1 || !ok2 || len(m) != 2 || strings.ContainsRune(role+content, utf8.RuneError) {
			return "", false
		}
		text += startPart + role + startText + content
	}
	return text, true
}

// FuzzScanner: no answer makes a Scanner panic, or say other things for being
// cut elsewhere.
func FuzzScanner(f *testing.F) {
	for _, a := range answers {
		f.Add(a.body, a.kind, 3, 40)
	}
	f.Add("data: {\r\rdata:\r\n: \n\r\n\ndata: [DONE]", sseType, 1, 9)
	f.Fuzz(func(t *testing.T, body, kind string, i, j int) {
		for path, e := range endpoints {
			if !e.Generates() {
				continue
			}
			whole, cut := scanner(t, path, "Content-Type", kind), scanner(t, path, "Content-Type", kind)
			_, _ = whole.Write([]byte(body))
			rest := body
			for _, n := range []int{i, j} {
				n = min(max(n, 0), len(rest))
				_, _ = cut.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			_, _ = cut.Write([]byte(rest))
			if a, b := look(whole), look(cut); a != b {
				t.Fatalf("%s %q: saw %+v, cut %+v", path, body, a, b)
			}
		}
	})
}

// FuzzJoiner: an undisturbed stream passes unchanged, and one that breaks off and is
// given once more says what it says undisturbed.
func FuzzJoiner(f *testing.F) {
	for _, a := range answers {
		f.Add(a.body, a.kind, 3, 40)
	}
	f.Fuzz(func(t *testing.T, body, kind string, i, j int) {
		for path, e := range endpoints {
			joiner := NewJoiner(e, func(name string) string { return map[string]string{"Content-Type": kind}[name] })
			if joiner == nil {
				continue
			}
			i, j = min(max(i, 0), len(body)), min(max(j, 0), len(body))
			var got string
			write := func(out []byte, err error) {
				if got += string(out); err != nil {
					t.Fatalf("%s %q: %v", path, body, err)
				}
			}
			write(joiner.Next([]byte(body[:i]), false))
			if !strings.HasPrefix(body, got) || len(got) < i-lineMax {
				t.Fatalf("%s %q became %q", path, body[:i], got)
			}
			if !joiner.Resumable() {
				return
			}
			joiner.Again()
			write(joiner.Next([]byte(body[:j]), false))
			write(joiner.Next([]byte(body[j:]), true))
			whole, joined := scanner(t, path, "Content-Type", kind), scanner(t, path, "Content-Type", kind)
			_, _ = whole.Write([]byte(body))
			_, _ = joined.Write([]byte(got))
			if a, b := look(whole), look(joined); a != b || i == 0 && got != body {
				t.Fatalf("%s %q became %q", path, body, got)
			}
		}
	})
}
