#!/usr/bin/env bash
# torch 2.13.0+cpu: what torch.utils.checkpoint computes again, it computes with what is there then, and gradients are wrong without a word.
#
# Without it autograd raises if something that backward needs was changed in place, and a mask is kept. Guess: with it the same holds; its
# determinism_check tells a recomputation that is another, or values are stashed as the random state is. Seen, use_reentrant True and False alike:
# 1. Weights changed between forward and backward (a step of another optimizer, as GANs have it): without checkpoint backward raises
#    "modified by an inplace operation"; with it the gradient is that of the new weights, beside a loss of the old ones.
# 2. A mask drawn from a torch.Generator of one's own is another one the second time: about half of 10,000 elements have a gradient where
#    the output was dropped, or none where it was kept. Masks of the default generator are right.
# 3. A mask drawn by NumPy's or Python's generator likewise. The check compares shapes, dtypes and devices only.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >again.py <<'PY'
import random

import numpy
import torch
from torch.utils.checkpoint import checkpoint

print("torch", torch.__version__)


def changed_weights(call):
    x = torch.ones(1, requires_grad=True)
    weight = torch.ones(1, requires_grad=True)
    loss = call(lambda x: (weight * x).exp(), x)
    with torch.no_grad():
        weight.mul_(2)
    loss.sum().backward()
    return x.grad.item()


def plain(function, x):
    return function(x)


try:
    changed_weights(plain)
    raise SystemExit("CHANGED: no checkpoint, no error")
except RuntimeError as error:
    assert "inplace operation" in str(error)
    print("changed weight, no checkpoint: backward raises")

generator = torch.Generator().manual_seed(0)
numpys = numpy.random.default_rng(0)
random.seed(0)
masks = {
    "the default generator": lambda: torch.rand(10000) < 0.5,
    "a generator of one's own": lambda: torch.rand(10000, generator=generator) < 0.5,
    "NumPy's": lambda: torch.from_numpy(numpys.random(10000) < 0.5),
    "Python's": lambda: torch.tensor([random.random() < 0.5 for _ in range(10000)]),
}
for reentrant in (False, True):
    def call(function, x):
        return checkpoint(function, x, use_reentrant=reentrant)

    gradient = changed_weights(call)
    old, new = torch.tensor(1.0).exp().item(), 2 * torch.tensor(2.0).exp().item()
    print(f"use_reentrant={reentrant}: gradient {gradient:.4f}; of the old weight {old:.4f}, of the new {new:.4f}")
    assert abs(gradient - new) < 1e-4, "CHANGED"
    for name, draw in masks.items():
        x = torch.ones(10000, requires_grad=True)
        y = call(lambda x: (x * draw()).expm1(), x)
        y.sum().backward()
        wrong = int(((x.grad != 0) != (y != 0)).sum())
        print(f"use_reentrant={reentrant}: mask of {name}: {wrong} of 10000 gradients are of another mask")
        assert wrong == 0 if name == "the default generator" else 4000 < wrong < 6000, "CHANGED"
PY
venv/bin/python again.py 2>err.log || { cat err.log; exit 1; }
