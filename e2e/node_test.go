package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// apiKey is the one that a node with --api-keys knows.
const apiKey = "sk-e2e-1234"

// keyFile is a file for --api-keys.
func keyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("# of this test\n"+apiKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The clients of OpenAI and of Anthropic for Node get from four nodes what they get
// from one: the same answers, the same errors of the same types.
func TestNodeClients(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed, which OpenAI's and Anthropic's clients for it need")
	}
	if _, err := os.Stat("clients/node_modules"); err != nil {
		t.Skip("the clients are not installed: run npm ci in e2e/clients")
	}
	engine := startScripted(t)
	keyed := startCluster(t, 1, "--api-keys", keyFile(t))[0]
	for _, file := range []string{"openai.test.mjs", "anthropic.test.mjs"} {
		t.Run(file, func(t *testing.T) {
			var told []map[string]any
			for _, nodes := range []int{1, 4} {
				t.Run(fmt.Sprint(nodes), func(t *testing.T) {
					told = append(told, runNode(t, node, file, map[string]any{
						"builtin":  startCluster(t, nodes),
						"scripted": startCluster(t, nodes, "--engine", engine),
						"keyed":    keyed,
						"key":      apiKey,
					}))
				})
			}
			if len(told) < 2 {
				return
			}
			one, four := told[0], told[1]
			if len(one) == 0 || len(one) != len(four) {
				t.Errorf("%d tests with one node, %d with four", len(one), len(four))
			}
			for _, name := range slices.Sorted(maps.Keys(one)) {
				if !reflect.DeepEqual(one[name], four[name]) {
					t.Errorf("%s: one node says\n%v\nfour say\n%v", name, one[name], four[name])
				}
			}
		})
	}
}

// runNode runs a file of tests and returns what its clients were told, by test.
func runNode(t *testing.T, node, file string, setup map[string]any) (told map[string]any) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	setup["report"] = report
	encoded, _ := json.Marshal(setup)
	cmd := exec.Command(node, "--test-reporter=spec", file)
	cmd.Dir = "clients"
	cmd.Env = append(os.Environ(), "SETUP="+string(encoded))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	return told
}
