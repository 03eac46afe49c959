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
rm "$run/timeline.svg"
step report "$run"
says "wrote $run/timeline.svg"
[ -s "$run/timeline.svg" ]
step plan "$run/plan.json"
says "modules on 2 stages"
