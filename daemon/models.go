package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/node"
)

// A model is an entry of an engine's /v1/models, as the engine wrote it.
type model struct {
	id     string
	parent string          // the model that it adapts, or ""
	raw    json.RawMessage // a JSON object
}

const (
	modelsPath  = "/v1/models"
	modelsBytes = 4 << 20     // of a list: that of a vLLM has some 500 for each adapter
	modelsWait  = time.Second // for a peer's list
)

// engineModels asks this node's engine which models it serves.
func (d *Daemon) engineModels(ctx context.Context, header http.Header) ([]model, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+modelsPath, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	d.authorize(req.Header)
	resp, err := d.cfg.Engine.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("ask the engine for its models: %w", err)
	}
	return readModels(resp)
}

func readModels(resp *http.Response) ([]model, error) {
	defer resp.Body.Close()
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return nil, fmt.Errorf("%w (status %d at %s)", errDenied, status, modelsPath)
	case status == http.StatusNotFound:
		return nil, nil // an engine without the page: it may serve anything
	case status >= 300 && status < 400:
		return nil, fmt.Errorf("the engine's %s is elsewhere, at %.200q: give as --engine the URL that it leads to", modelsPath, resp.Header.Get("Location"))
	case status != http.StatusOK:
		return nil, fmt.Errorf("ask the engine for its models: status %d", status)
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, modelsBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the engine for its models: %w", err)
	case len(page) > modelsBytes:
		return nil, fmt.Errorf("the engine's list of models takes more than %d bytes: have it list fewer", modelsBytes)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(page, &list); err != nil {
		return nil, fmt.Errorf("the engine's %s is no list of models: give as --engine the base URL of an OpenAI server (%w)", modelsPath, err)
	}
	var models []model
	for _, raw := range list.Data {
		var entry struct {
			ID     string `json:"id"`
			Parent string `json:"parent"` // of an adapter, by vLLM and SGLang
		}
		if json.Unmarshal(raw, &entry) == nil && entry.ID != "" {
			models = append(models, model{entry.ID, entry.Parent, raw})
		}
	}
	if len(models) == 0 {
		return nil, errors.New("the engine lists no model: have it load one")
	}
	return models, nil
}

// defaultModel is what this node's engine runs for a request that names no model.
func (d *Daemon) defaultModel() (id string) {
	d.locked(func(time.Time, *node.Node) { id = d.health.defaultModel() })
	return id
}

func (h *health) defaultModel() string {
	if len(h.models) > 0 {
		return h.models[0].id
	}
	return ""
}

// canonicalModel is the engine's name of the model that a request calls asked: the
// cache does not care how it was spelled.
func (d *Daemon) canonicalModel(asked string) string {
	if real, ok := d.cfg.Aliases[asked]; ok {
		return real
	}
	if d.cfg.AnyModel || asked == "" {
		d.locked(func(time.Time, *node.Node) {
			listed := slices.ContainsFunc(d.health.models, func(m model) bool { return m.id == asked })
			if !listed {
				asked = d.health.defaultModel()
			}
		})
	}
	return asked
}

// serveModels answers GET /v1/models with what the whole cluster serves, and
// /v1/models/ID with one of it. Entries are the engines' own, with the names of
// the nodes that serve them added as served_by. What this node's engine does
// not list is asked of one peer that does; one that takes longer than modelsWait
// is gone without.
func (d *Daemon) serveModels(w http.ResponseWriter, q *request) result {
	res := result{outcome: outcomeOK, status: http.StatusOK, decision: node.Decision{Node: d.cfg.Node.Name, Self: true, Reason: "all nodes"}}
	models := d.clusterModels(q)
	var out any = struct {
		Object string            `json:"object"`
		Data   []json.RawMessage `json:"data"`
	}{"list", models}
	if id, one := strings.CutPrefix(q.http.URL.Path, modelsPath+"/"); one {
		i := slices.IndexFunc(models, func(raw json.RawMessage) bool { return idOf(raw) == id })
		if i < 0 {
			return d.refuse(w, q, &noModelError{id, d.knownModels()})
		}
		out = models[i]
	}
	d.describe(w.Header(), q, res.decision)
	writeJSON(w, res.status, out)
	return res
}

func idOf(raw json.RawMessage) string {
	var entry struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(raw, &entry)
	return entry.ID
}

// clusterModels collects the entries of all models, this node's first.
func (d *Daemon) clusterModels(q *request) []json.RawMessage {
	ctx, cancel := context.WithTimeout(q.http.Context(), modelsWait)
	defer cancel()
	header := http.Header{} // nothing that would make of a list something else
	for _, name := range append([]string{requestIDHeader, traceparentHeader}, keyHeaders...) {
		if v := q.http.Header[name]; v != nil {
			header[name] = v
		}
	}
	own, err := d.engineModels(ctx, header.Clone())
	if err != nil {
		d.log.Debug("models of the cluster without this node's engine", "err", err)
	}
	nodes := d.modelNodes()
	entries := map[string]json.RawMessage{}
	var order []string
	for _, m := range own {
		if _, twice := entries[m.id]; !twice {
			order = append(order, m.id)
		}
		entries[m.id] = m.raw
		if !slices.Contains(nodes[m.id], d.cfg.Node.Name) {
			nodes[m.id] = append(nodes[m.id], d.cfg.Node.Name)
		}
	}
	for _, m := range d.askForModels(ctx, header, nodes, entries) {
		entries[m.id] = m.raw
	}
	var others []string
	for id := range nodes {
		if !slices.Contains(order, id) && id != node.AnyModel {
			others = append(others, id)
		}
	}
	slices.Sort(others)
	out := []json.RawMessage{}
	for _, id := range append(order, others...) {
		out = append(out, withNodes(id, entries[id], nodes[id], d.cfg.Aliases[id]))
	}
	return out
}

// modelNodes tells which nodes serve each model, by what they say.
func (d *Daemon) modelNodes() map[string][]string {
	nodes := map[string][]string{}
	d.locked(func(now time.Time, n *node.Node) {
		s := n.Status(now)
		if !s.Down {
			for _, id := range s.Models {
				nodes[id] = append(nodes[id], s.Name)
			}
		}
		for _, p := range s.Peers {
			if p.State == node.Suspected || p.State == node.Down {
				continue
			}
			for _, id := range p.Models {
				nodes[id] = append(nodes[id], p.Name)
			}
		}
	})
	return nodes
}

// askForModels asks peers, at once and as few as will do, for the entries that are missing.
func (d *Daemon) askForModels(ctx context.Context, header http.Header, nodes map[string][]string, have map[string]json.RawMessage) []model {
	ask := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		_, known := have[id]
		covered := slices.ContainsFunc(nodes[id], func(name string) bool { return ask[name] || name == d.cfg.Node.Name })
		if !known && !covered && id != node.AnyModel {
			ask[nodes[id][0]] = true
		}
	}
	var mu sync.Mutex
	var all []model
	var wg sync.WaitGroup
	for peer := range ask {
		wg.Go(func() {
			defer d.survived("a list of models")
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://peer"+modelsPath, nil)
			if err != nil {
				return
			}
			req.Header = header.Clone()
			req.Header.Set(hopHeader, d.cfg.Node.Name)
			resp, err := d.mesh.RoundTrip(peer, req)
			if err != nil {
				return
			}
			models, _ := readModels(resp)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, models...)
		})
	}
	wg.Wait()
	return all
}

// withNodes adds who serves it to an entry; where nobody has given one it is made
// of what is known.
func withNodes(id string, raw json.RawMessage, nodes []string, root string) json.RawMessage {
	if raw == nil {
		entry := map[string]any{"id": id, "object": "model", "created": 0, "owned_by": "hearsay"}
		if root != "" {
			entry["root"] = root
		}
		raw, _ = json.Marshal(entry)
	}
	slices.Sort(nodes)
	list, _ := json.Marshal(slices.Compact(nodes))
	open := bytes.TrimRight(raw, " \t\r\n")
	return slices.Concat(open[:len(open)-1], []byte(`,"served_by":`), list, []byte("}"))
}

// A noModelError says that no live node serves the model.
type noModelError struct {
	model string
	known []string
}

func (e *noModelError) Error() string {
	const most = 20
	list, more := e.known, ""
	if len(list) > most {
		list, more = list[:most], fmt.Sprintf(" and %d more", len(e.known)-most)
	}
	asked := e.model
	if len(asked) > 100 {
		asked = strings.ToValidUTF8(asked[:100], "") + "..."
	}
	return fmt.Sprintf("the model %q does not exist here; there is %s%s", asked, cmp.Or(strings.Join(list, ", "), "none"), more)
}

// knownModels lists what any live node serves.
func (d *Daemon) knownModels() []string {
	known := d.modelNodes()
	delete(known, node.AnyModel)
	return slices.Sorted(maps.Keys(known))
}
