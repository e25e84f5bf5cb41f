package cases

import (
	"fmt"
	"strings"
	"testing"
)

// G32: numbers, unknown fields and the order of keys reach the engine as written.
func TestG32Numbers(t *testing.T) {
	const body = ` {"model":"m-test", "messages":[{"role":"user","content":"hi"}],"seed":9007199254740993,"temperature":0.10000000149011612,"top_p":1.0,"metadata":{"order_id":123456789012345678901234567890},"x_unknown":{"z":1e400,"a":-0}}  `
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(body), s)
		c.wantAsked(body)
	})
}

// G33: a request that names two models is refused: one parser would check the one
// and another run the other.
func TestG33ModelTwice(t *testing.T) {
	for name, body := range map[string]string{
		"two":          `{"model":"m-test","messages":[{"role":"user","content":"hi"}],"model":"lora-a"}`,
		"the same":     `{"model":"m-test","messages":[{"role":"user","content":"hi"}],"model":"m-test"}`,
		"other case":   `{"model":"m-test","messages":[{"role":"user","content":"hi"}],"Model":"lora-a"}`,
		"escaped":      `{"model":"m-test","messages":[{"role":"user","content":"hi"}],"m\u006fdel":"lora-a"}`,
		"null and one": `{"model":null,"messages":[{"role":"user","content":"hi"}],"model":"m-test"}`,
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
				wantError(t, c.post(body), 400, "unreadable_body")
				if n := len(c.served().asked()); n > 0 {
					t.Errorf("the engine was asked %d times", n)
				}
			})
		})
	}
}

// G33: of any other key given twice the last counts, as in the engines' own parsers.
// What routes a request is then what runs it.
func TestG33KeyTwice(t *testing.T) {
	twice := strings.Replace(long("law", 20, ""), "{", `{"messages":[{"role":"system","content":"other"}],`, 1)
	byPrefix(t, func(t *testing.T, c *cluster) {
		c.warm(chatPath, long("law", 20, ""))
		c.wantPredicted("the last is the same", chatPath, twice, 19, 30)
		asked := c.served().asked()
		if got := string(asked[len(asked)-1].Body); got != twice {
			t.Errorf("the engine got %s", excerpt(got))
		}
		c.wantPredicted("the first is the same", chatPath, strings.Replace(long("law", 20, ""), "]}", `],"messages":[{"role":"system","content":"other"}]}`, 1), 0, 0)
	})
}

// G34: escapes reach the engine as written, whatever they mean.
func TestG34Escapes(t *testing.T) {
	const body = `{"model":"m-test","messages":[{"role":"user","content":"nul \u0000 lone \ud83d pair \ud83d\ude00 html <b>&amp;</b> \u003cb\u003e sep \u2028 slash \/ tab \t"}]}`
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(body), s)
		c.wantAsked(body)
	})
}

// G34: texts that differ in a character without a meaning are two texts.
func TestG34TextsApart(t *testing.T) {
	for name, pair := range map[string][2]string{
		"lone surrogates":         {`\ud83d`, `\ud83e`},
		"surrogate and its mark":  {`\ud83d`, `\ufffd`},
		"NUL and nothing":         {`\u0000`, ``},
		"NUL and space":           {`\u0000`, ` `},
		"surrogates in the order": {`\ude00\ud83d`, `\ud83d\ude00`},
	} {
		t.Run(name, func(t *testing.T) {
			byPrefix(t, func(t *testing.T, c *cluster) {
				a := strings.Replace(long("law", 20, ""), "law", pair[0], 1)
				c.warm(chatPath, a)
				c.wantPredicted("the other", chatPath, strings.Replace(long("law", 20, ""), "law", pair[1], 1), 0, 0)
				c.wantPredicted("the same", chatPath, a, 19, 30)
			})
		})
	}
}

// G35: nesting without end costs a node neither its stack nor much time: it is
// refused, or it is the engine's to judge.
func TestG35DeepNesting(t *testing.T) {
	deep := strings.Repeat("[", 12000) + strings.Repeat("]", 12000)
	deeper := strings.Repeat(`{"a":[`, 100000)
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.anyone = true // what is unreadable is served where it came in
		answers := make(chan reply)
		bodies := []string{
			`{"model":"m-test","messages":[{"role":"user","content":"hi"}],"x":` + deep + `}`,
			`{"model":"m-test","messages":[{"role":"user","content":[{"type":"x","x":` + deep + `}]}]}`,
			`{"model":"m-test","messages":` + deep + `,"tools":` + deep + `}`,
			`{"model":"m-test","messages":` + deeper,
			deep,
		}
		for i := range 50 {
			go func() { answers <- c.post(bodies[i%len(bodies)]) }()
		}
		for range 50 {
			switch r := <-answers; r.status {
			case 200:
			case 400:
				wantError(t, r, 400, "unreadable_body")
			default:
				t.Errorf("%d %v %s", r.status, r.err, r.body)
			}
		}
		r := c.post(chat)
		c.wantWhole(r, s)
	})
}

// G36: a prompt is the same however its JSON is spelled.
func TestG36Spelling(t *testing.T) {
	text := strings.Repeat("Résumé désordonné. ", 60)
	var escaped strings.Builder
	for _, r := range text {
		if r > 127 {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	byPrefix(t, func(t *testing.T, c *cluster) {
		c.warm(chatPath, `{"model":"m-test","messages":[{"role":"system","content":`+quote(text)+`},{"role":"user","content":"un"}]}`)
		c.wantPredicted("escaped", chatPath, `{ "messages": [ {"content":"`+escaped.String()+`", "role" : "\u0073ystem"},`+"\n\t"+`{"role":"user","content":"deux"}], "\u006dodel":"m\u002dtest" }`,
			len(text)/64, len(text)/64+1)
	})
}
