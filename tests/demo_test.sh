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

# refuse TEXT ARGUMENTS: it fails, and says so.
refuse() {
  local expected=$1
  shift
  echo "+ smp $*"
  if "$smp" "$@" >said 2>&1; then cat said; echo "was not refused"; exit 1; fi
  grep -qF -- "$expected" said || { cat said; echo "said nothing of: $expected"; exit 1; }
  [ "$(grep -cF -- "$expected" said)" = 1 ] || { cat said; echo "said more than once: $expected"; exit 1; }
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
# More ranks than cores: said once, and no reason to fret.
echo "+ smp demo on one core"
taskset -c "$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')" \
  "$smp" demo --ranks 2 --config tiny --steps 3 --seed 7 --data "$text" >said || { cat said; exit 1; }
says "^note +ranks outnumber the cores of this machine"
[ "$(grep -c "outnumber" said)" = 1 ] && [ "$(grep -c "bubble .* %$" said)" = 3 ] || { cat said; exit 1; }
runs=(runs/demo-*)
step report "${runs[0]}" "${runs[1]}"
says "^ +${runs[0]#runs/} +${runs[1]#runs/} +change$"
says "^a step +[0-9.]+ m?s +[0-9.]+ m?s +[-+][0-9.]+ %$"
says "^The losses of the 3 steps that both have "
says "^busy +[0-9.]+ m?s +[0-9.]+ m?s "
says "^wrote ${runs[1]}/compared-with-${runs[0]#runs/}.html$"
[ -s "${runs[1]}/compared-with-${runs[0]#runs/}.html" ]

# Replicas and spread layers.
gpt="--size tiny --steps 4 --microbatches 2 --generate 5 --data $text"
step demo --dp 2 --help
says "byte-level GPT"
step demo --dp 2 --tp 2 --rows 8 $gpt
says "^ranks +4 = 1 stages x 2 tensor-parallel x 2 replicas$"
says "losses of 3 steps equal those of one process"
says "^step +4/4 "
run=$(echo runs/gpt-*)
for file in plan.json metrics.jsonl report.html; do [ -s "$run/$file" ]; done
refuse "--tp takes a number from 1 to 9999, not 'two'" demo --tp two
refuse "--ranks 3, but --pp, --tp and --dp make 4" demo --dp=2 --tp 2 --ranks 3
refuse "hidden_size 16 cannot be divided by the 3 tensor-parallel ranks" demo --tp 3 --rows 6 $gpt
refuse "8 rows a step cannot be dealt to 3 batches" demo --dp 3 --rows 8 $gpt

# A Llama in two stages, with the text that comes with it.
refuse "--model takes t5, gpt or llama, not 'bert'" demo --model bert
step demo --model llama --help
says "Trains a Llama on text"
step demo --model llama --size tiny --rows 4 --context 32 --steps 6 --evaluate-every 3 --generate 6 --smp.price_per_hour 2
says "^ranks +2 = 2 stages x 1 tensor-parallel x 1 replicas$"
says "^check +losses and gradient norms of 3 steps equal those of one process"
says "^step +3/6 .* MFU .* held out [0-9.]+$"
says "^done +6 steps, 768 tokens; .* 4 M tokens cost [0-9.]+"
says "^writes +hacker: n\. "
run=$(echo runs/llama-*)
for file in plan.json metrics.jsonl loss.svg report.html; do [ -s "$run/$file" ]; done
refuse "4 rows cannot be dealt to 2 replicas in microbatches of 4: choose a multiple of 8" \
  demo --model llama --dp 2 --size tiny --rows 4 --micro-rows 4
