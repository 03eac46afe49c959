#!/usr/bin/env bash
# torch 2.13.0+cpu: set_flush_denormal(True) holds for the calling thread, not for the pool that computes with it.
#
# "Disables denormal floating numbers on CPU." Guess: for all of torch's threads from then on. Seen, with 2 threads and a million
# numbers of 1e-40 times 1.5:
# 1. If any larger operation ran before, the pool has its threads, and half of the result is 0 and half 1.5e-40: one product, two
#    arithmetics. With one thread all are 0.
# 2. If the call is the first thing that the program does, threads inherit it and all are 0.
# So results depend on the number of threads and on what ran before; call it first of all, or in each thread.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >flush.py <<'PY'
import sys

import torch

when, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
if when == "first":
    assert torch.set_flush_denormal(True)
small = torch.full((1000000,), 1.0).view(torch.int32).fill_(71362).view(torch.float32)  # the bits of 1e-40
if when == "later":
    assert torch.set_flush_denormal(True)
product = small * 1.5
zeros = int((product.view(torch.int32) == 0).sum())
torch.set_flush_denormal(False)
print(f"set {when}, {threads} threads: {zeros} of 1000000 products are zero")
expected = 500000 if (when, threads) == ("later", 2) else 1000000
sys.exit(f"CHANGED: {expected} expected" if zeros != expected else 0)
PY
venv/bin/python -c 'import torch; print("torch", torch.__version__)'
venv/bin/python flush.py later 2
venv/bin/python flush.py later 1
venv/bin/python flush.py first 2
