#!/usr/bin/env bash
# demo_test.sh SOURCE SCRATCH: a short ./smp demo of the build that SMP_BUILT names, and what the README says to do with
# the folder that it leaves.
set -euo pipefail

smp=$1/smp
text=$1/LICENSE
rm -rf "$2"
mkdir -p "$2"
cd "$2"

step() {
  echo "+ smp $*"
  "$smp" "$@" >said || { cat said; exit 1; }
}

says() { grep -qE -- "$1" said || { cat said; echo "said nothing of: $1"; exit 1; }; }

step demo --help
says "Trains a T5"
step demo --ranks 2 --config tiny --steps 3 --seed 7 --data "$text"
says "3 steps equal those of one process"
run=$(echo runs/demo-*)
for file in timeline.svg timeline.html report.html; do
  [ -s "$run/$file" ]
  rm "$run/$file"
done
step report "$run"
says "^demo on 2 ranks, started .*: 3 steps$"
says "^a step +measured +predicted$"
says "^stage 1 +[0-9.]+ [KMG]iB +[0-9.]+ [KMG]iB"
for file in timeline.svg timeline.html report.html; do
  says "wrote $run/$file"
  [ -s "$run/$file" ]
done
step trace "$run"
says "wrote $run/trace-chrome.json: open it at"
python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))["traceEvents"]) > 20' "$run/trace-chrome.json"
step plan "$run"
says "modules on 2 stages"
step plan "$run/plan.json"
says "modules on 2 stages"
