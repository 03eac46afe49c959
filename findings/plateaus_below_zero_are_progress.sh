#!/usr/bin/env bash
# torch 2.13.0+cpu, optax 0.2.8 (jax 0.10.2): of a loss below zero ReduceLROnPlateau takes every value for progress, a worse one too.
#
# ReduceLROnPlateau lowers the rate when the loss has not become better for some steps; better is "by a ten-thousandth of the best", threshold=1e-4
# with threshold_mode="rel". Guess: the rate falls on any loss that stands still, a log-likelihood or a cosine distance of -1 as well. Seen:
# 1. A loss of 1 for 300 steps lowers the rate from 1 to the least; a loss of -1 for 300 steps leaves it at 1. "Better" is below best * (1 - 1e-4), and
#    that is above the best if the best is negative: the same value is progress each time.
# 2. A loss that becomes worse by 0.00005 a step, from -1 to -0.985, is progress in each step, and "best" follows it up.
# 3. mode="max" is alike: a score of -1, such as a negative error, never lowers the rate.
# 4. optax.contrib.reduce_on_plateau has the same rule and the same end. threshold_mode="abs" (in optax rtol=0, with atol) lowers it in all cases.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "optax==0.2.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import jax
import jax.numpy as jnp
import optax
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

print("torch", torch.__version__, "optax", optax.__version__, "jax", jax.__version__)


def torch_rate(start, drift, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=3, **settings)
    for step in range(300):
        scheduler.step(start + drift * step)
    return optimizer.param_groups[0]["lr"], scheduler.best


def optax_scale(start, drift, **settings):
    plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=3, **settings)
    weight = jnp.ones(1)
    state = plateau.init(weight)
    for step in range(30):
        _, state = plateau.update(weight, state, weight, value=start + drift * step)
    return float(state.scale)


for start, drift in ((1.0, 0.0), (1.0, 5e-5), (-1.0, 0.0), (-1.0, 5e-5)):
    (rate, best), scale = torch_rate(start, drift), optax_scale(start, drift)
    absolute = torch_rate(start, drift, threshold_mode="abs")[0], optax_scale(start, drift, rtol=0.0, atol=1e-4)
    print(f"loss {start}, worse by {drift} a step: rate {rate:.2g} (best {best:.4g}), optax {scale:.2g}; with an absolute threshold {absolute[0]:.2g}, {absolute[1]:.2g}")
    assert (rate == 1 and scale == 1) == (start < 0) and (start > 0 or abs(best - start - 299 * drift) < 1e-9), "CHANGED"
    assert max(absolute) < 0.01, "CHANGED"
for score in (1.0, -1.0):
    rate = torch_rate(score, 0.0, mode="max")[0]
    print(f"score {score}, to be large: rate {rate:.2g}")
    assert (rate == 1) == (score < 0), "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
