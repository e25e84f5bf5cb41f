package emulate

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Profile is how fast one engine on one machine is, and how much it can hold.
type Profile struct {
	Name   string
	Source string // where the timings come from, in one line for people

	Base     time.Duration // of each request before its first token, whatever its length
	PerToken time.Duration // prefill of one prompt token that is not cached
	Decode   time.Duration // of each output token after the first

	MaxBatch        int // requests that run at once; SGLang and vLLM run up to 256 by default
	CapacityTokens  int // of the KV cache, running requests included
	KVBytesPerToken int // of KV cache, 2 * layers * KV heads * head size * bytes per number
}

// Unlimited is a CapacityTokens that no workload fills.
const Unlimited = 1 << 40

// Validate reports every problem of the profile at once.
func (p Profile) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf("profile %s: "+format, append([]any{p.Name}, args...)...))
		}
	}
	check(p.Base >= 0 && p.PerToken >= 0 && p.Decode >= 0, "a time is negative: Base %v, PerToken %v, Decode %v", p.Base, p.PerToken, p.Decode)
	check(p.MaxBatch >= 1, "MaxBatch %d: at least one request must be able to run", p.MaxBatch)
	check(p.CapacityTokens >= 1 && p.CapacityTokens <= Unlimited, "CapacityTokens %d: choose 1 to %d", p.CapacityTokens, Unlimited)
	check(p.KVBytesPerToken >= 0, "KVBytesPerToken %d is negative", p.KVBytesPerToken)
	return errors.Join(problems...)
}

const maxBatch = 256

// profiles: times are the reciprocals of published rates.
//
// The paper gives no timings, only means. Its prompts have about 540 tokens, so a
// hit rate h leaves 540*(1-h) of them to compute. Between its two skewed rows
// (Table 2: 85.6 % in 0.266 s, 91.4 % in 0.206 s), which differ in routing alone,
// 31.3 tokens take 60 ms: 1.91 ms a token. The uniform row without routing (83.1 %
// in 0.323 s) then leaves 0.149 s for everything else. TestPaperProfile does the
// sums and holds what this fit cannot explain.
//
// Its cache: a tenth of 80 GB, less 1 GB of weights, at 14 KB a token (section 2).
//
// The others are of github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, which
// ran llama-bench (May 2024): prefill at 1024 tokens, decode at 1024, one
// sequence. Nothing around the model was measured, so their Base is zero. Their
// caches are what nine tenths of the memory leave beside the weights.
var profiles = []Profile{
	{
		Name:   "paper",
		Source: "Qwen2.5-0.5B on a tenth of an H100: fitted to Tables 1 and 2 of arXiv 2606.17059",
		Base:   149 * time.Millisecond, PerToken: 1910 * time.Microsecond, Decode: 10 * time.Millisecond,
		MaxBatch: maxBatch, CapacityTokens: 500_000, KVBytesPerToken: 14_000,
	},
}

// ByName returns the profile that flags and files call name.
func ByName(name string) (Profile, error) {
	for _, p := range profiles {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("unknown profile %q; choose one of %s", name, strings.Join(Names(), ", "))
}

// Names lists the profiles.
func Names() []string {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		names[i] = p.Name
	}
	return names
}
