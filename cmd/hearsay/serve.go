package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/builtin"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/mesh/cert"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// serveFlags are the settings of one node, as the operator gives them.
type serveFlags struct {
	config string

	listen   string
	daemon   daemon.Config
	logLevel string
	logJSON  bool

	name           string
	peerListen     string
	mesh           mesh.Config
	gossip         string
	cert           cert.Files
	clusterKey     string
	node           node.Config
	policy         string
	warming        bool
	engine         string
	engineKind     string
	engineKey      string
	apiKeys        string
	builtin        builtin.Config
	emulated       emulated.Config
	untilStdinEnds bool
}

// defaultWarmShare is what operators mean who say nothing of --warm-share.
const defaultWarmShare = 0.05

func serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run one node beside an engine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	addGroups(cmd, f.groups()...)
	cmd.Flags().BoolVar(&f.untilStdinEnds, "until-stdin-ends", false, "shut down when standard input ends")
	_ = cmd.Flags().MarkHidden("until-stdin-ends")
	return cmd
}

func (f *serveFlags) groups() []flagGroup {
	group := func(title string, define func(*pflag.FlagSet)) flagGroup {
		flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
		define(flags)
		return flagGroup{title, flags}
	}
	return []flagGroup{
		group("Clients", func(s *pflag.FlagSet) {
			s.StringVar(&f.listen, "listen", "127.0.0.1:8080", "`address` of the OpenAI API")
			s.Int64Var(&f.daemon.BodyMax, "body-max", 32<<20, "`bytes` of one request's body; more is refused with 413")
			s.Int64Var(&f.daemon.BodiesMax, "bodies-max", 512<<20, "`bytes` of all requests whose answer has not begun; more are refused with 429")
			s.IntVar(&f.daemon.InFlightMax, "in-flight-max", 256, "requests at the engine at a time; more are refused with 429")
			s.StringVar(&f.apiKeys, "api-keys", "", "`file` of keys, one a line, of which a client has to send one; without it anyone may come in")
			s.BoolVar(&f.daemon.ForwardKeys, "forward-keys", false, "send a client's key on to the engine though --api-keys has checked it")
			s.DurationVar(&f.daemon.DrainTimeout, "drain-timeout", 30*time.Second, "how long a shutdown waits for running requests")
		}),
		group("Engine", func(s *pflag.FlagSet) {
			s.StringVar(&f.engine, "engine", "builtin", "`builtin`, emulated or emulated:PROFILE (waits as another machine would compute), or the URL of an OpenAI server")
			s.StringVar(&f.engineKind, "engine-kind", string(probe.Auto), "`kind` of the engine at a URL: auto finds out; vllm, sglang, llamacpp, ollama, or openai, which is asked for nothing but its models")
			s.StringVar(&f.engineKey, "engine-key", "", "`file` with the key that the engine wants; it is sent in the place of a client's")
			s.StringToStringVar(&f.daemon.Aliases, "alias", nil, "`name=model` that clients may use for a model of the engine; may be repeated, and is best the same on every node")
			s.BoolVar(&f.daemon.AnyModel, "any-model", false, "the engine serves its one model whatever name a request gives, as llama.cpp does")
			s.DurationVar(&f.daemon.HealthInterval, "health-interval", 2*time.Second, "between two probes of the engine")
			s.IntVar(&f.daemon.HealthFailures, "health-failures", 3, "`probes` in a row that have to fail before the engine counts as down")
			s.IntVar(&f.daemon.HealthSuccesses, "health-successes", 1, "`probes` in a row that have to succeed before it is back")
			s.StringVar(&f.daemon.KVEvents.Endpoint, "kv-events", "", "`endpoint` where the engine publishes KV events, as tcp://127.0.0.1:5557 or ipc:///run/kv; @tcp://... where the engine dials and the node is to bind; emulated publishes there")
			s.StringVar(&f.daemon.KVEvents.Replay, "kv-events-replay", "", "`endpoint` where the engine replays them; without it a gap clears the tree")
			s.IntVar(&f.daemon.KVEvents.Ranks, "kv-events-ranks", 1, "data-parallel `ranks` of the engine, each a port above the one before")
			s.StringVar(&f.daemon.KVEvents.Topic, "kv-events-topic", "", "`prefix` of the topics to follow; empty for all")
			s.StringVar(&f.builtin.Model, "model", "", "builtin: a .gguf or llama2.c .bin `file`, or random:DIMxLAYERS; without it the project's own tiny model")
			s.StringVar(&f.builtin.Tokenizer, "tokenizer", "", "builtin: the tokenizer `file` of a .bin model")
			s.StringVar(&f.builtin.Name, "model-name", "", "builtin: the `name` that the model is served under")
			s.IntVar(&f.node.CapacityTokens, "kv-tokens", 0, "capacity of the engine's KV cache in `tokens`; 0 is 32768 for builtin, the profile's for emulated, and for others what they tell or show")
			s.IntVar(&f.builtin.Context, "context", 0, "builtin: longest prompt and answer in `tokens`; 0 is the model's default")
			s.Float64Var(&f.emulated.TimeScale, "time-scale", 1, "emulated: real `seconds` to an emulated one; 0.05 is twenty times faster")
			s.IntVar(&f.emulated.BlockTokens, "block-tokens", 16, "emulated: `tokens` of a block of the KV cache")
			s.Float64Var(&f.emulated.TokenBytes, "token-bytes", 0, "emulated: `bytes` of text that count as a token; 0 counts as the tokenizer cl100k_base does")
		}),
		group("Routing", func(s *pflag.FlagSet) {
			s.StringVar(&f.policy, "policy", route.Economic{}.Name(), "`name`: "+route.Names())
			s.BoolVar(&f.warming, "warming", true, "have the idle engine compute prefixes for which clients' requests are forwarded again and again (--policy economic)")
			s.Float64Var(&f.node.WarmShare, "warm-share", defaultWarmShare, "prompt `tokens` that it may compute so for each that it serves, after a burst of 16,384")
			s.IntVar(&f.node.QueueThreshold, "queue-threshold", 8, "`requests` at the engine, by --policy economic those without a first token, above which the node asks its peers to pause")
			s.DurationVar(&f.node.PauseFor, "pause", 0, "how long such a pause lasts; 0 is two poll intervals")
			s.IntVar(&f.daemon.ForwardsMax, "forwards-max", 3, "`peers` tried for one request before it is served here")
			s.BoolVar(&f.daemon.NoReplay, "no-replay", false, "never repeat a request that an engine may have worked on")
			s.DurationVar(&f.daemon.FirstByteTimeout, "first-byte-timeout", 10*time.Minute, "longest wait for an answer's first byte, or for all of a short one, over all tries")
			s.DurationVar(&f.daemon.IdleTimeout, "idle-timeout", 5*time.Minute, "longest wait from one piece of an answer to the next")
		}),
		group("Peers", f.peerFlags),
		group("Operation", func(s *pflag.FlagSet) {
			s.StringVar(&f.config, "config", "", "YAML `file` of flags by their names")
			s.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
			s.BoolVar(&f.logJSON, "log-json", false, "log as JSON")
		}),
	}
}

func (f *serveFlags) peerFlags(s *pflag.FlagSet) {
	s.StringVar(&f.name, "name", "", "`name` of this node, unique in the cluster; default that of --peer-cert, or host name and peer port")
	s.StringVar(&f.peerListen, "peer-listen", "127.0.0.1:7946", "`address` of the peer port")
	s.StringVar(&f.mesh.Advertise, "advertise", "", "`host:port` at which peers reach the peer port; default the address it is bound to")
	s.StringArrayVar(&f.mesh.Join, "join", nil, "`host:port` or dns:name:port of any member; may be repeated")
	s.DurationVar(&f.node.Poll, "poll", 500*time.Millisecond, "interval between rumors, 20ms to 300s")
	s.IntVar(&f.mesh.RelayAbove, "relay-above", 64, "`nodes` above which rumors are relayed by neighbours, in delta mode, and not told by each node to every other; the same on every node")
	s.IntVar(&f.node.RumorBytes, "rumor-bytes", 1<<20, "`bytes` a second of all rumors that this node sends in delta mode, its own and those it relays; beyond it the most recently used blocks are told first")
	s.IntVar(&f.node.PeerBytes, "peer-memory", 256<<20, "`bytes` for what is believed of all peers; the same on every node, which tells no more than its share")
	s.StringVar(&f.gossip, "gossip", "delta", "`mode`: delta tells each peer what has changed since what it holds, paper the complete tree each interval")
	s.StringVar(&f.cert.Cert, "peer-cert", "", "certificate `file` of this node (TLS 1.3, both sides); it is for --name, and read again when it changes, as the next three are")
	s.StringVar(&f.cert.Key, "peer-key", "", "key `file` of this node")
	s.StringVar(&f.cert.CA, "peer-ca", "", "`file` of the authority that signs the peers' certificates")
	s.StringVar(&f.cert.Revoked, "peer-revoked", "", "`file` of certificates that count no more, a line each: serial HEX, or name NAME")
	s.BoolVar(&f.mesh.Insecure, "insecure-peers", false, "accept any peer, on any address, in the clear")
	s.StringVar(&f.clusterKey, "cluster-key", "", "`file` with the cluster's secret, which keys the names of prefixes")
	s.DurationVar(&f.mesh.LinkDelay, "link-delay", 0, "experiments: one-way latency added to every peer message")
	s.DurationVar(&f.mesh.LinkJitter, "link-jitter", 0, "experiments: random part of that latency, plus or minus")
}

// run is the life of one node.
func (f *serveFlags) run(cmd *cobra.Command) error {
	log, err := f.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	cfg, closeEngine, err := f.build(log)
	if err != nil {
		return err
	}
	defer closeEngine()
	d, err := daemon.New(cfg)
	if err != nil {
		return misuse("%w", err)
	}
	ctx := cmd.Context()
	if f.untilStdinEnds {
		ctx = untilEOF(ctx, cmd.InOrStdin())
	}
	log.Info("serving", "node", cfg.Node.Name, "api", cfg.API.Addr().String(), "peers", cfg.Mesh.Listener.Addr().String(),
		"engine", f.engine, "policy", cfg.Node.Policy.Name(), "poll", cfg.Node.Poll.String())
	return d.Run(ctx)
}

// build turns flags into the parts of a daemon. What it has opened it closes
// again on failure.
func (f *serveFlags) build(log *slog.Logger) (cfg daemon.Config, closeEngine func() error, err error) {
	var opened []io.Closer
	defer func() {
		if err != nil {
			for _, c := range opened {
				c.Close()
			}
		}
	}()
	cfg = f.daemon
	cfg.Node, cfg.Mesh, cfg.Log = f.node, f.mesh, log
	if cfg.Mesh.RumorBytes = f.node.RumorBytes; f.gossip == "paper" {
		cfg.Mesh.Whole, cfg.Node.RumorBytes = true, -1
	}
	if cfg.Node.Policy, err = route.ByName(f.policy); err != nil {
		return cfg, nil, misuse("--policy: %w", err)
	}
	cfg.Node.NoWarming = !f.warming
	if err = errors.Join(f.check(), f.secrets(&cfg)); err != nil {
		return cfg, nil, err
	}
	if cfg.API, err = listen("--listen", f.listen); err != nil {
		return cfg, nil, err
	}
	opened = append(opened, cfg.API)
	if cfg.Mesh.Listener, err = listen("--peer-listen", f.peerListen); err != nil {
		return cfg, nil, err
	}
	opened = append(opened, cfg.Mesh.Listener)
	switch cfg.Node.Name = f.name; {
	case cfg.Mesh.Identity != nil:
		cfg.Node.Name = cfg.Mesh.Identity.Name()
	case f.name == "":
		cfg.Node.Name = defaultName(cfg.Mesh.Listener.Addr())
	}
	cfg.Node.Life = uint64(time.Now().UnixNano())
	cfg.Engine, closeEngine, err = f.openEngine(&cfg)
	return cfg, closeEngine, err
}

// check refuses what would stop the node, and flags that the engine would not see.
func (f *serveFlags) check() error {
	for _, c := range []struct {
		ok       bool
		flag     string
		expected string
	}{
		{f.daemon.BodyMax > 0, "body-max", "at least 1"},
		{f.daemon.BodiesMax >= f.daemon.BodyMax, "bodies-max", "at least --body-max"},
		{f.daemon.InFlightMax > 0, "in-flight-max", "at least 1"},
		{f.daemon.DrainTimeout > 0, "drain-timeout", "above 0"},
		{f.daemon.ForwardsMax > 0, "forwards-max", "at least 1; --policy local forwards nothing"},
		{f.daemon.FirstByteTimeout > 0, "first-byte-timeout", "above 0"},
		{f.daemon.IdleTimeout > 0, "idle-timeout", "above 0"},
		{f.daemon.HealthInterval >= 10*time.Millisecond, "health-interval", "at least 10ms"},
		{f.daemon.HealthFailures > 0, "health-failures", "at least 1"},
		{f.daemon.HealthSuccesses > 0, "health-successes", "at least 1"},
		{!f.daemon.ForwardKeys || f.apiKeys != "", "forward-keys", "false without --api-keys: keys are the engine's then, and always sent on"},
		{f.node.QueueThreshold > 0, "queue-threshold", "at least 1"},
		{f.node.PauseFor >= 0, "pause", "0 or more"},
		{f.node.WarmShare > 0 && f.node.WarmShare <= 1, "warm-share", "above 0 and at most 1; --warming=false turns warming off"},
		{f.node.WarmShare == defaultWarmShare || f.warming && f.policy == route.Economic{}.Name(), "warm-share", "left out unless --policy is economic and --warming on: nothing is warmed then"},
		{f.node.CapacityTokens >= 0, "kv-tokens", "0 or more"},
		{f.node.Poll >= node.MinPoll && f.node.Poll <= node.MaxPoll, "poll", "20ms to 300s"},
		{f.mesh.LinkDelay >= 0, "link-delay", "0 or more"},
		{f.mesh.LinkJitter >= 0 && f.mesh.LinkJitter <= f.mesh.LinkDelay, "link-jitter", "0 to --link-delay"},
		{!f.mesh.Insecure || f.cert == (cert.Files{}), "insecure-peers", "false where --peer-cert, --peer-key, --peer-ca or --peer-revoked is given"},
		{f.engine == "builtin" || f.builtin == builtin.Config{}, "engine", "builtin where --model, --tokenizer, --model-name or --context are given"},
		{f.emulates() || f.emulated == emulated.Config{TimeScale: 1, BlockTokens: 16}, "engine", "emulated where --time-scale, --block-tokens or --token-bytes are given"},
		{f.emulated.TimeScale > 0, "time-scale", "above 0"},
		{f.emulated.BlockTokens > 0, "block-tokens", "at least 1"},
		{slices.Contains(probe.Kinds(), probe.Kind(f.engineKind)), "engine-kind", "auto, vllm, sglang, llamacpp, ollama or openai"},
		{!f.inProcess() || f.engineKind == string(probe.Auto), "engine", "a URL where --engine-kind is given"},
		{f.daemon.KVEvents.Endpoint != "" || f.daemon.KVEvents.Replay+f.daemon.KVEvents.Topic == "" && f.daemon.KVEvents.Ranks == 1, "kv-events", "given where --kv-events-replay, --kv-events-ranks or --kv-events-topic is"},
		{f.daemon.KVEvents.Endpoint == "" || f.engine != "builtin", "engine", "a URL or emulated where --kv-events is given: builtin publishes none"},
		{f.gossip == "delta" || f.gossip == "paper", "gossip", "delta or paper"},
		{f.mesh.RelayAbove > 0, "relay-above", "at least 1; 1024 or more is never"},
		{f.node.RumorBytes >= minRumorBytes, "rumor-bytes", fmt.Sprintf("at least %d: rumors without any tree take some hundreds of bytes a second for each peer", minRumorBytes)},
		{f.node.PeerBytes > 0, "peer-memory", "at least 1"},
	} {
		if !c.ok {
			return misuse("--%s must be %s", c.flag, c.expected)
		}
	}
	if f.daemon.KVEvents.Endpoint != "" {
		if err := f.daemon.KVEvents.Validate(); err != nil {
			return misuse("--kv-events: %w", err)
		}
	}
	return nil
}

// minRumorBytes a second carry what rumors say besides trees among some tens of nodes
// at the default poll. Less would let nothing else be told, ever.
const minRumorBytes = 10_000

// secrets reads the peer certificates and all keys.
func (f *serveFlags) secrets(cfg *daemon.Config) (err error) {
	if f.cert != (cert.Files{}) {
		if cfg.Mesh.Identity, err = cert.Open(f.cert, f.name); err != nil {
			return misuse("%w", err)
		}
	}
	if f.apiKeys != "" {
		if cfg.APIKeys, err = readKeys("--api-keys", f.apiKeys); err != nil {
			return err
		}
	}
	for _, key := range []struct {
		flag, file, remedy string
		to                 func(string)
	}{
		{"--engine-key", f.engineKey, "put the engine's key in it", func(s string) { cfg.EngineKey = s }},
		{"--cluster-key", f.clusterKey, "put the same long random text in it on every node", func(s string) { cfg.Key = prefix.Key(s) }},
	} {
		if key.file == "" {
			continue
		}
		text, err := os.ReadFile(key.file)
		if err != nil {
			return misuse("%s: %w", key.flag, err)
		}
		secret := strings.TrimSpace(string(text))
		if secret == "" {
			return misuse("%s: %s is empty; %s", key.flag, key.file, key.remedy)
		}
		key.to(secret)
	}
	return nil
}

// readKeys reads a file of one key a line; empty lines and those that begin with #
// do not count.
func readKeys(flag, file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, misuse("%s: %w", flag, err)
	}
	var keys []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, misuse("%s: %s holds no key; put one on each line", flag, file)
	}
	return keys, nil
}

// openEngine opens the engine that --engine names. Of one that is ours it sets how
// many tokens it can cache; of another that is learnt.
func (f *serveFlags) openEngine(cfg *daemon.Config) (http.RoundTripper, func() error, error) {
	capacity := &cfg.Node.CapacityTokens
	switch {
	case f.engine == "builtin":
		f.builtin.KVTokens = *capacity
		e, err := builtin.Open(f.builtin)
		if err != nil {
			return nil, nil, misuse("--engine builtin: %w", err)
		}
		*capacity, cfg.CapacityFrom, cfg.EngineKind = e.Load().KVTokens, daemon.FromEngine, "builtin"
		return engine.Local{Handler: e}, e.Close, nil
	case f.emulates():
		e, closeEngine, err := f.openEmulated(*capacity)
		if err != nil {
			return nil, nil, misuse("--engine %s: %w", f.engine, err)
		}
		*capacity, cfg.CapacityFrom, cfg.EngineKind = e.CapacityTokens(), daemon.FromEngine, "emulated"
		return engine.Local{Handler: e}, closeEngine, nil
	}
	remote, err := engine.OpenRemote(f.engine)
	if err != nil {
		return nil, nil, misuse("--engine: %w; or builtin, or emulated", err)
	}
	cfg.EngineKind, cfg.Node.LearnCapacity = probe.Kind(f.engineKind), true
	return remote, remote.Close, nil
}

// inProcess says whether the engine is one of ours.
func (f *serveFlags) inProcess() bool { return f.engine == "builtin" || f.emulates() }

func (f *serveFlags) emulates() bool {
	return f.engine == "emulated" || strings.HasPrefix(f.engine, "emulated:")
}

// openEmulated opens an engine that can cache so many tokens; 0 takes the profile's. It
// publishes where its node is to follow it, if anywhere.
func (f *serveFlags) openEmulated(capacity int) (e *emulated.Engine, closeEngine func() error, err error) {
	_, profile, _ := strings.Cut(f.engine, ":")
	cfg := f.emulated
	if cfg.Profile, err = emulate.ByName(cmp.Or(profile, emulate.Names()[0])); err != nil {
		return nil, nil, err
	}
	cfg.Profile.CapacityTokens = cmp.Or(capacity, cfg.Profile.CapacityTokens)
	events := f.daemon.KVEvents
	if events.Endpoint == "" {
		if e, err = emulated.Open(cfg); err != nil {
			return nil, nil, err
		}
		return e, e.Close, nil
	}
	if cfg.Publisher, err = kvevents.Publish(events); err != nil {
		return nil, nil, err
	}
	if e, err = emulated.Open(cfg); err != nil {
		return nil, nil, errors.Join(err, cfg.Publisher.Close())
	}
	return e, func() error { return errors.Join(e.Close(), cfg.Publisher.Close()) }, nil
}

func (f *serveFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, misuse("--log-level: %q is none of debug, info, warn, error", f.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	if f.logJSON {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}

// listen binds an address that a flag named.
func listen(flag, address string) (net.Listener, error) {
	if address == "" {
		return nil, misuse("%s is empty; give an address such as 127.0.0.1:8080", flag)
	}
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	var op *net.OpError
	if errors.As(err, &op) && portTaken(op.Err) {
		return nil, misuse("%s: port %s is taken by another program; choose another with %s", flag, address, flag)
	}
	return nil, misuse("%s: %w", flag, err)
}

// defaultName is unique among the nodes of a cluster as long as their hosts'
// names are.
func defaultName(peer net.Addr) string {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	_, port, _ := net.SplitHostPort(peer.String())
	return fmt.Sprintf("%s-%s", host, port)
}
