#!/usr/bin/env bash
# What an idle cluster costs: the CPU time of each of four nodes over a minute
# without requests, in percent of one core, from their own metrics.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'kill -INT "${demo:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -o "$work/hearsay" ./cmd/hearsay
"$work/hearsay" demo --requests "${REQUESTS:-0}" --port 28080 --peer-port 27946 >"$work/log" &
demo=$!
until grep -q '^entry' "$work/log"; do
  kill -0 $demo
  sleep 0.1
done
sleep 5 # what starting costs is not idling
seconds=60
cpu() { curl -s "http://127.0.0.1:$1/metrics" | sed -n 's/^process_cpu_seconds_total //p'; }
declare -A before
for port in 28080 28081 28082 28083; do before[$port]=$(cpu $port); done
sleep $seconds
for port in 28080 28081 28082 28083; do
  awk -v a="${before[$port]}" -v b="$(cpu $port)" -v s=$seconds -v p=$port \
    'BEGIN { printf "127.0.0.1:%d  %.2f %% of a core\n", p, 100 * (b - a) / s }'
done
