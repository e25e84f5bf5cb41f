package cases

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// G37: what no node serves is refused at once, with what there is instead, and no
// engine is asked. What one node alone serves goes there whatever else is cached.
func TestG37UnknownModel(t *testing.T) {
	virtual(t, 3, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
		c.members["C"].engine.serve("m-test", "m-rare")
		rare := strings.Replace(long("law", 20, ""), "m-test", "m-rare", 1)
		c.warm(chatPath, long("law", 20, ""))
		time.Sleep(5 * time.Second)
		begun := time.Now()
		r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, strings.Replace(chat, "m-test", "nope", 1))
		message := wantError(t, r, 404, "model_not_found")
		if took := time.Since(begun); took > 0 || !strings.Contains(message, "nope") || !strings.Contains(message, "m-rare") {
			t.Errorf("told %q after %v", message, took)
		}
		for name, m := range c.members {
			if n := len(m.engine.asked()); n != map[string]int{"B": 1}[name] {
				t.Errorf("%s's engine was asked %d times", name, n)
			}
		}
		if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, rare); r.status != 200 || r.node() != "C" {
			t.Errorf("what C alone serves was served by %s: %d %s", r.node(), r.status, r.body)
		}
	}, policy(t, "longest"))
}

// G38: adapters and the model below them share text, not cache.
func TestG38Adapters(t *testing.T) {
	base := long("law", 20, "")
	byPrefix(t, func(t *testing.T, c *cluster) {
		c.warm(chatPath, base)
		for _, adapter := range []string{"lora-a", "lora-b"} {
			c.wantPredicted(adapter, chatPath, strings.Replace(base, "m-test", adapter, 1), 0, 0)
		}
		c.wantPredicted("lora_path", chatPath, strings.Replace(base, "{", `{"lora_path":"x",`, 1), 0, 0)
		c.wantPredicted("another tenant", chatPath, strings.Replace(base, "{", `{"cache_salt":"x",`, 1), 0, 0)
		c.wantPredicted("the base", chatPath, base, 19, 30)
	})
}

// G39: any node lists what all serve, once each, as the engines describe it. What is
// gone is not listed for long, and a slow peer does not make it slow.
func TestG39ModelsOfTheCluster(t *testing.T) {
	virtual(t, 3, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
		c.members["A"].engine.serve("m-test")
		c.members["B"].engine.serve("m-test")
		c.members["C"].engine.serve("m-2")
		time.Sleep(5 * time.Second)
		first := c.get("A", "/v1/models")
		if again := c.get("A", "/v1/models"); string(again.body) != string(first.body) {
			t.Errorf("%s, then %s", first.body, again.body)
		}
		if got := listed(t, first); !slices.Equal(got, []string{"m-test", "m-2"}) {
			t.Errorf("listed %q", got)
		}
		var one map[string]any
		if r := c.get("A", "/v1/models/m-2"); json.Unmarshal(r.body, &one) != nil || one["id"] != "m-2" || one["max_model_len"] != 4096.0 || one["owned_by"] != "test" {
			t.Errorf("%d %s", r.status, r.body)
		}
		wantError(t, c.get("A", "/v1/models/none"), 404, "model_not_found")

		c.members["C"].engine.slow(1000, 10*time.Second)
		begun := time.Now()
		r := c.get("A", "/v1/models")
		if took := time.Since(begun); took > time.Second || !slices.Equal(listed(t, r), []string{"m-test", "m-2"}) {
			t.Errorf("beside a slow peer: %q after %v", listed(t, r), took)
		}
		c.kill("C")
		time.Sleep(3 * time.Second)
		if got := listed(t, c.get("A", "/v1/models")); !slices.Equal(got, []string{"m-test"}) {
			t.Errorf("after C's death: %q", got)
		}
	})
}

func listed(t *testing.T, r reply) (ids []string) {
	t.Helper()
	var list struct {
		Object string
		Data   []struct{ ID string }
	}
	if err := json.Unmarshal(r.body, &list); err != nil || r.status != 200 || list.Object != "list" {
		t.Errorf("%d %s: %v", r.status, r.body, err)
	}
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}
