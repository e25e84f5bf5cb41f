// Command overhead measures what a proxy in front of an engine costs: hearsay, one
// node and over a hop, and nginx as a plain reverse proxy, beside the engine alone, in
// one run on loopback. The engine is scripted and takes next to no time;
// experiments/overhead.sh runs it all.
//
// All get the same load in turn, for short periods many times over, so that
// whatever else the machine does befalls all of them alike. What a proxy can do per
// core is its work by the processor time of its own processes, not by the clock: clients
// and engine share the cores with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

// flags are the settings of a run; main says what each is.
type flags struct {
	hearsay, nginx string
	asks, rounds   int
	period, pace   time.Duration
	clients        []int
	engine, model  string
}

func main() {
	var f flags
	flag.StringVar(&f.hearsay, "hearsay", "", "the program hearsay; built if not given")
	flag.StringVar(&f.nginx, "nginx", "nginx", "the program nginx; an empty name leaves it out")
	flag.IntVar(&f.asks, "asks", 2000, "requests one at a time to each, for the time to the first token")
	flag.DurationVar(&f.period, "period", 2*time.Second, "of load on one before the next")
	flag.IntVar(&f.rounds, "rounds", 3, "periods for each")
	flag.DurationVar(&f.pace, "pace", 20*time.Millisecond, "of the tokens of a stream")
	f.clients = []int{1, 64, 512}
	flag.Func("connections", "numbers of clients at a time, as 1,64,512", f.readClients)
	flag.StringVar(&f.engine, "engine", "", "be the scripted engine at this address")
	flag.StringVar(&f.model, "model", model, "that the scripted engine serves")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := f.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

func (f *flags) readClients(list string) error {
	f.clients = nil
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of clients", word)
		}
		f.clients = append(f.clients, n)
	}
	return nil
}

func (f *flags) run(ctx context.Context) error {
	if f.engine != "" {
		return f.beEngine()
	}
	dir, err := os.MkdirTemp("", "overhead-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if f.hearsay == "" {
		if f.hearsay, err = process.Build(dir); err != nil {
			return err
		}
	}
	targets, err := f.targets(dir)
	if err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, t := range targets {
		for _, p := range t.processes {
			defer p.Stop()
			if err := p.Start(); err != nil {
				return err
			}
		}
		for _, p := range t.processes {
			if err := p.Wait(ready); err != nil {
				return err
			}
		}
		if err := t.waitServed(ready); err != nil {
			return err
		}
	}
	return f.measure(ctx, targets)
}

// beEngine serves until standard input ends.
func (f *flags) beEngine() error {
	l, err := net.Listen("tcp", f.engine)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		l.Close()
	}()
	_ = serveEngine(l, f.model, f.pace) // ends when l is closed
	return nil
}

// A target is what is put under load, by its name in the tables.
type target struct {
	name      string
	addr      string
	processes []*process.Server // whose processor time is its own
}

// waitServed returns once a request is answered.
func (t target) waitServed(ctx context.Context) error {
	for {
		err := t.try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", t.name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t target) try() error {
	c, err := dial(t.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, _, _, err = c.ask(request(1, false))
	return err
}

// targets are the engine and the proxies in front of it.
func (f *flags) targets(dir string) ([]target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addrs, err := process.Ports(9)
	if err != nil {
		return nil, err
	}
	engine := func(addr, model string) *process.Server {
		return &process.Server{
			Name: "engine", Addr: addr, Ready: "/v1/models", Program: self, Log: os.Stderr,
			Args: []string{"-engine", addr, "-model", model, "-pace", f.pace.String()},
		}
	}
	node := func(name, api, peer, seed, engine string) *process.Server {
		return &process.Server{
			Name: name, Addr: api, Ready: "/readyz", Program: f.hearsay, Log: os.Stderr,
			Args: []string{
				"serve", "--until-stdin-ends", "--name", name, "--listen", api, "--peer-listen", peer, "--join", seed,
				"--engine", "http://" + engine, "--in-flight-max", "4096", "--log-level", "warn",
			},
		}
	}
	one, other := engine(addrs[0], model), engine(addrs[1], "another")
	alone := node("alone", addrs[2], addrs[3], addrs[3], one.Addr)
	// The first of two nodes beside an engine of another model has to ask the second.
	first, second := node("first", addrs[4], addrs[5], addrs[7], other.Addr), node("second", addrs[6], addrs[7], addrs[7], one.Addr)
	targets := []target{
		{"engine", one.Addr, []*process.Server{one}},
		{"hearsay", alone.Addr, []*process.Server{alone}},
		{"hearsay, a hop", first.Addr, []*process.Server{second, first, other}},
	}
	if f.nginx == "" {
		return targets, nil
	}
	nginx, err := f.proxy(dir, one.Addr, addrs[8])
	return append(targets, target{"nginx", addrs[8], []*process.Server{nginx}}), err
}

// proxy is nginx at addr, in front of the engine.
func (f *flags) proxy(dir, engine, addr string) (*process.Server, error) {
	program, err := exec.LookPath(f.nginx)
	if err != nil {
		return nil, fmt.Errorf("%w; install it, or leave it out with -nginx ''", err)
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, engine, addr), 0o600); err != nil {
		return nil, err
	}
	return &process.Server{
		Name: "nginx", Addr: addr, Ready: "/v1/models", Program: program, Log: os.Stderr,
		Args: []string{"-c", config, "-p", dir, "-e", filepath.Join(dir, "error.log")},
	}, nil
}

// cpu is the processor time that the target has taken.
func (t target) cpu() (total time.Duration, err error) {
	for _, p := range t.processes {
		of, err := p.CPU()
		if err != nil {
			return 0, err
		}
		total += of
	}
	return total, nil
}

// nginxConfig passes everything to the engine over kept connections, each piece of an
// answer as it comes, and logs nothing: the least that a proxy of this kind does.
const nginxConfig = `
daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  client_body_buffer_size 64k;
  keepalive_requests 1000000000;
  upstream engine { server %[2]s; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }
  }
}
`
