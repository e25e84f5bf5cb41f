#!/usr/bin/env bash
# Ten minutes of mixed load on three nodes with an engine each, of which an engine
# and a node are killed and restarted three times a minute: every answer is compared
# with an undisturbed engine's, and memory, goroutines and descriptors must stay flat.
# Samples and their plot go to the folder OUT, soak-out by default.
#
#   experiments/soak.sh [DURATION [FLAG...]]     flags as in e2e/soak_test.go
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-10m}
shift $(($# < 1 ? $# : 1))
out=$(realpath -m "${OUT:-soak-out}")
cd e2e
go test -count=1 -timeout 24h -run '^TestSoak$' -v . -soak "$duration" -soak-out "$out" "$@"
