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

// perToken is the time of one token at a published rate in tokens a second.
func perToken(rate float64) time.Duration {
	return time.Duration(float64(time.Second) / rate)
}

// profiles, the paper's first.
//
// The paper gives no timings, only means. Its prompts have about 540 tokens, so a
// hit rate h leaves 540*(1-h) of them to compute. Between its two skewed rows
// (Table 2: 85.6 % in 0.266 s, 91.4 % in 0.206 s), which differ in routing alone,
// 31.3 tokens take 60 ms: 1.91 ms a token. The uniform row without routing (83.1 %
// in 0.323 s) then leaves 0.149 s for everything else. TestPaperProfile does the
// sums and holds what this fit cannot explain. The paper decodes one token, so
// Decode is a guess that no experiment of it touches. Its cache: a tenth of 80 GB,
// less 1 GB of weights, at the 14 KB a token of its section 2.
//
// The others rest on rates that llama-bench gave in github.com/XiongjieDai/
// GPU-Benchmarks-on-LLM-Inference, README at 00dd2bd: prefill and decode at 1024
// tokens (LLaMA 2: the mean over lengths), one sequence alone. Nothing around the
// model was measured, so their Base is zero, and a batch decodes as fast as one
// sequence, which is kind to large batches. Their caches are what nine tenths of
// the memory (of a Mac's, the 78 % that Metal may use) leave beside the weights,
// at 16-bit keys and values: Llama 3 8B has 32 layers and 8 KV heads of 128, the
// 70B 80 layers, Llama 2 7B 32 layers and 32 heads.
var profiles = []Profile{
	{
		Name:   "paper",
		Source: "Qwen2.5-0.5B on a tenth of an H100; fitted to Tables 1 and 2 of arXiv 2606.17059",
		Base:   149 * time.Millisecond, PerToken: 1910 * time.Microsecond, Decode: 10 * time.Millisecond,
		MaxBatch: maxBatch, CapacityTokens: 500_000, KVBytesPerToken: 14_000,
	},
	{
		Name:     "llama3-8b-rtx4090",
		Source:   "Llama 3 8B F16, RTX 4090 24 GB, llama.cpp; XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024",
		PerToken: perToken(9056.26), Decode: perToken(54.34),
		MaxBatch: maxBatch, CapacityTokens: 54_000, KVBytesPerToken: 2 * 32 * 8 * 128 * 2,
	},
	{
		Name:     "llama3-8b-m2ultra",
		Source:   "Llama 3 8B Q4_K_M, M2 Ultra 192 GB, llama.cpp; XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024",
		PerToken: perToken(1023.89), Decode: perToken(76.28),
		MaxBatch: maxBatch, CapacityTokens: 1_180_000, KVBytesPerToken: 2 * 32 * 8 * 128 * 2,
	},
	{
		Name:     "llama3-70b-2xrtx4090",
		Source:   "Llama 3 70B Q4_K_M, two RTX 4090 24 GB, llama.cpp; XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024",
		PerToken: perToken(905.38), Decode: perToken(19.06),
		MaxBatch: maxBatch, CapacityTokens: 11_800, KVBytesPerToken: 2 * 80 * 8 * 128 * 2,
	},
	{
		Name:     "llama2-7b-h100",
		Source:   "Llama 2 7B F16, H100 PCIe 80 GB, llama.cpp; XiongjieDai/GPU-Benchmarks-on-LLM-Inference, Dec 2023",
		PerToken: perToken(7367), Decode: perToken(83.32),
		MaxBatch: maxBatch, CapacityTokens: 121_000, KVBytesPerToken: 2 * 32 * 32 * 128 * 2,
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
