#!/usr/bin/env bash
# Eight nodes in network namespaces of their own under 200 requests/s, while what is
# between them loses 30 %, delays by 200 ms out of order, is cut both ways and one way,
# three are killed and one runs at a tenth of its speed, a minute each. Every answer is
# compared with an undisturbed engine's; within five seconds of each fault as much must
# be found cached as before all of them. Needs root, ip and /dev/net/tun; 8 minutes.
# Figures by the second and their plot go to the folder OUT, netns-out by default.
#
#   experiments/netns.sh [PHASE [FLAG...]]     flags as in e2e/soak_test.go: -soak-seed 2
set -euo pipefail
cd "$(dirname "$0")/.."
export HEARSAY_NETNS_PHASE=${1:-60s}
shift $(($# < 1 ? $# : 1))
out=$(realpath -m "${OUT:-netns-out}")
cd e2e
go test -count=1 -timeout 24h -run '^TestNetns$' -v . -soak-out "$out" "$@"
