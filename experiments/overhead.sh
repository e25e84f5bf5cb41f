#!/usr/bin/env bash
# What a proxy adds to an engine, on loopback: hearsay and nginx (a plain reverse
# proxy, its own configuration in a folder that goes away) beside the engine alone,
# under the same load in turn. Time to the first token, and requests and chunks of
# streams a second per core of the proxy. Takes two minutes and needs nginx.
#
#   experiments/overhead.sh [FLAG...]     go run ./overhead -h in e2e/ lists them
set -euo pipefail
cd "$(dirname "$0")/../e2e"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -o "$work/overhead" ./overhead
"$work/overhead" "$@"
