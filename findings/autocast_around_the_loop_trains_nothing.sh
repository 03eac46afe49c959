#!/usr/bin/env bash
# torch 2.13.0+cpu: with autocast around the loop, every step computes with the weights of the first one.
#
# torch.autocast is a context, and its cache keeps a weight from being cast twice. Guess: with the context around the whole loop, rather than
# around forward, backward and the step run under autocast as well, which is not advised and changes a rounding; a cache notices that the
# optimizer has written the weight, as autograd notices it by the tensor's version. Seen of a linear model, 30 steps of SGD:
# 1. Around forward, the loss falls from 5.2 to 0.02. Around the loop it is 5.2288 in every step: the cast weight of the first step is used
#    until the context is left, while optimizer.step() moves the float32 weight on, by the same gradient each time, past the solution.
# 2. An evaluation in the loop, under no_grad(), has the first weights as well, and agrees with the curve. What is saved, or used behind the
#    loop, is another model, with a loss above the one that it began with.
# 3. autocast(cache_enabled=False) around the loop trains as usual. Nothing warns of the other.
# So open autocast in each step, around forward and loss.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >loop.py <<'PY'
import contextlib

import torch

print("torch", torch.__version__)
STEPS = 30


def train(around, **options):
    """Losses of training and of evaluation, a pair for each step, and the loss behind the context."""
    def autocast(here):
        return torch.autocast("cpu", torch.bfloat16, **options) if here else contextlib.nullcontext()

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(64, 4)
    y = x.sum(1, True)

    def loss():
        return torch.nn.functional.mse_loss(net(x).float(), y)

    curve = []
    with autocast(around):
        for _ in range(STEPS):
            optimizer.zero_grad()
            with autocast(not around):
                trained = loss()
            trained.backward()
            optimizer.step()
            with torch.no_grad(), autocast(not around):
                curve.append((trained.item(), loss().item()))
    with torch.no_grad():
        return curve, loss().item()


inside, around, uncached = train(False), train(True), train(True, cache_enabled=False)
for name, (curve, behind) in (("around forward", inside), ("around the loop", around), ("around the loop, without a cache", uncached)):
    print(f"{name}: loss of training " + ", ".join(f"{curve[step][0]:.4f}" for step in (0, 1, 2, 14, 29)) +
          "; of evaluation " + ", ".join(f"{curve[step][1]:.4f}" for step in (0, 1, 2, 14, 29)) + f"; behind the context {behind:.4f}")
assert inside[0][-1][0] < 0.05 and uncached[0][-1][0] < 0.05 and inside[1] < 0.05 and uncached[1] < 0.05
assert len({value for pair in around[0] for value in pair}) == 1, "CHANGED: the loop trains"
assert around[1] > around[0][0][0], "CHANGED"
PY
venv/bin/python loop.py 2>err.log || { cat err.log; exit 1; }
