#!/usr/bin/env bash
# torchmetrics 1.9.0, torch 2.13.0+cpu: SumMetric of integers is a float32, so a count of tokens comes to a stop.
#
# SumMetric adds up what it is given, over steps and ranks: tokens, rows, characters. Guess: integers are added as integers, as torch.sum() does it
# (int64), or float64 is used. Seen of update() with int64 tensors, nothing said:
# 1. Behind 16,777,216 a further 1 adds nothing: 100 times 1 leave it as it is.
# 2. Tokens by the batch stop as well: behind 137,438,953,472 (2**37) batches of 8192 add nothing, a hundred of them or any number; before that
#    each is rounded: behind 2**34 batches of 1000 add nothing and batches of 1500 add 2048 each.
# 3. metric.set_dtype(torch.float64) and metric.to(torch.float64) count on; metric.double() changes nothing.
# A count of the program's own, in Python's integers, needs none of it.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torchmetrics==1.9.0" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import torch
import torchmetrics

print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)


def added(start, batch, times, prepare=lambda metric: metric):
    metric = prepare(torchmetrics.SumMetric())
    metric.update(torch.tensor(start))
    for _ in range(times):
        metric.update(torch.tensor(batch))
    return int(metric.compute()) - start


for start, batch, times, expected in ((2**24, 1, 100, 0), (2**37, 8192, 100, 0), (2**34, 1000, 1000, 0), (2**34, 1500, 1000, 2_048_000)):
    found = added(start, batch, times)
    print(f"{times} times {batch} behind {start}: {found} for {batch * times}")
    assert found == expected, "CHANGED"
ways = {"set_dtype": lambda metric: metric.set_dtype(torch.float64), "double": lambda metric: metric.double(), "to": lambda metric: metric.to(torch.float64)}
for name, prepare in ways.items():
    found = added(2**37, 8192, 100, prepare)
    print(f"{name}: {found} for 819200")
    assert found == (0 if name == "double" else 819200), "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
