#!/usr/bin/env bash
# Compares the policies over real processes: four nodes with emulated engines (profile
# paper) and delayed links, the same MMLU prompts one at a time, and beside each the
# simulator on the same requests. Fails where the two put the policies in another order:
# a pair counts whose simulated means are more than a twentieth apart.
#
#   experiments/economic.sh [REQUESTS [TIME_SCALE [DELAYS [WORKLOADS]]]]
#
# DATA names a folder with MMLU's dev/ and test/; without it prompts are synthetic.
set -euo pipefail
cd "$(dirname "$0")/.."
requests=${1:-400} scale=${2:-0.1} delays=${3:-2ms,50ms,200ms} workloads=${4:-mmlu,mmlu-skewed}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -o "$work/hearsay" ./cmd/hearsay
"$work/hearsay" bench paper --policy local,longest,longest+pushback,economic --delay "$delays" --workload "$workloads" \
  --requests "$requests" --time-scale "$scale" --port 28080 --peer-port 27946 ${DATA:+--data "$DATA"} --json >"$work/rows.json"

python3 - "$work/rows.json" <<'EOF'
import itertools, json, sys

rows = json.load(open(sys.argv[1]))["rows"]
print(f"{'workload':12} {'delay':>6}  {'policy':17} {'simulated s':>11} {'measured s':>10} {'cached %':>8} {'fullest %':>9} {'forwarded %':>11}")
cells = {}
for r in rows:
    delay = round(r["delay_ms"])
    cells.setdefault((r["workload"], delay), []).append(r)
    print(f"{r['workload']:12} {delay:4}ms  {r['policy']:17} {r['simulated']['mean_s']:11.3f} {r['mean_s']:10.3f} "
          f"{100 * r['actual_hit']:8.1f} {100 * r['fullest_share']:9.1f} {100 * r['forwarded_share']:11.1f}")
wrong = 0
for cell, policies in cells.items():
    for a, b in itertools.combinations(policies, 2):
        if a["simulated"]["mean_s"] > b["simulated"]["mean_s"]:
            a, b = b, a
        if b["simulated"]["mean_s"] > 1.05 * a["simulated"]["mean_s"] and a["mean_s"] > b["mean_s"]:
            print(f"{cell[0]} at {cell[1]} ms: {b['policy']} is faster than {a['policy']}, which the simulator denies")
            wrong += 1
sys.exit(wrong > 0)
EOF
