// Command overhead measures what a proxy in front of an engine costs: hearsay, one
// node, and nginx as a plain reverse proxy, beside the engine alone, in one run on
// loopback. The engine is scripted and takes next to no time; experiments/overhead.sh
// runs it all.
//
// The three get the same load in turn, for short periods many times over, so that
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
	engine         string
}

func main() {
	var f flags
	flag.StringVar(&f.hearsay, "hearsay", "", "the program hearsay; built if not given")
	flag.StringVar(&f.nginx, "nginx", "nginx", "the program nginx; an empty name leaves it out")
	flag.IntVar(&f.asks, "asks", 2000, "requests one at a time to each, for the time to the first token")
	flag.DurationVar(&f.period, "period", 2*time.Second, "of load on one of the three before the next")
	flag.IntVar(&f.rounds, "rounds", 3, "periods for each")
	flag.DurationVar(&f.pace, "pace", 20*time.Millisecond, "of the tokens of a stream")
	f.clients = []int{1, 64, 512}
	flag.Func("connections", "numbers of clients at a time, as 1,64,512", f.readClients)
	flag.StringVar(&f.engine, "engine", "", "be the scripted engine at this address")
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
	for _, t := range targets {
		defer t.Stop()
		if err := t.Start(); err != nil {
			return err
		}
		ready, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := t.Wait(ready); err != nil {
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
	_ = serveEngine(l, f.pace) // ends when l is closed
	return nil
}

// targets are the engine and the proxies in front of it.
func (f *flags) targets(dir string) ([]*process.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addrs, err := process.Ports(4)
	if err != nil {
		return nil, err
	}
	engine, node, peer, proxy := addrs[0], addrs[1], addrs[2], addrs[3]
	targets := []*process.Server{
		{
			Name: "engine", Addr: engine, Ready: "/v1/models", Program: self, Log: os.Stderr,
			Args: []string{"-engine", engine, "-pace", f.pace.String()},
		},
		{
			Name: "hearsay", Addr: node, Ready: "/readyz", Program: f.hearsay, Log: os.Stderr,
			Args: []string{
				"serve", "--until-stdin-ends", "--listen", node, "--peer-listen", peer,
				"--engine", "http://" + engine, "--in-flight-max", "4096", "--log-level", "warn",
			},
		},
	}
	if f.nginx == "" {
		return targets, nil
	}
	program, err := exec.LookPath(f.nginx)
	if err != nil {
		return nil, fmt.Errorf("%w; install it, or leave it out with -nginx ''", err)
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, engine, proxy), 0o600); err != nil {
		return nil, err
	}
	return append(targets, &process.Server{
		Name: "nginx", Addr: proxy, Ready: "/v1/models", Program: program, Log: os.Stderr,
		Args: []string{"-c", config, "-p", dir, "-e", filepath.Join(dir, "error.log")},
	}), nil
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
