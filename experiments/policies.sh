#!/usr/bin/env bash
# Compares policies side by side: for each workload and each policy a fresh
# cluster of four nodes on loopback, the same requests one at a time, and a report.
#
#   experiments/policies.sh [LINK_DELAY [REQUESTS [POLICY...]]]
#
# DATA names a folder with MMLU's dev/ and test/; without it prompts are synthetic.
set -euo pipefail
cd "$(dirname "$0")/.."
delay=${1:-2ms} requests=${2:-400}
shift $(($# < 2 ? $# : 2))
policies=("${@:-local}")
[ $# -gt 0 ] || policies=(local longest longest+pushback economic)

work=$(mktemp -d)
trap 'kill -INT "${demo:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -o "$work/hearsay" ./cmd/hearsay

port=28080
targets=()
for i in 0 1 2 3; do targets+=(--target "http://127.0.0.1:$((port + i))"); done
for workload in mmlu mmlu-skewed; do
  for policy in "${policies[@]}"; do
    "$work/hearsay" demo --requests 0 --port $port --peer-port 27946 --policy "$policy" -- --link-delay "$delay" >"$work/log" &
    demo=$!
    until grep -q '^entry' "$work/log"; do
      kill -0 $demo
      sleep 0.1
    done
    "$work/hearsay" bench --workload "$workload" ${DATA:+--data "$DATA"} --requests "$requests" "${targets[@]}"
    kill -INT $demo
    wait $demo
  done
done
