#!/usr/bin/env bash
# torch 2.13.0+cpu: a scheduler that is made after the optimizer's state was loaded trains on at another rate, though its own state is loaded.
#
# load_state_dict() of the optimizer, then a scheduler for it, then load_state_dict() of the scheduler. Guess: with both states loaded the rate
# is the saved one; the order matters for the next step at most, since torch says that making a scheduler writes the optimizer's rate.
# Seen, saved after 23 steps, rates of the 60 steps that follow:
# 1. SequentialLR of a warmup from 0.01 and a cosine: 0.001 for 0.095 and a hundredth of what it should be in every step; ChainedScheduler:
#    a tenth; ConstantLR, long past its constant part: half. The making's factor stays in, as later steps multiply the rate there is.
# 2. OneCycleLR, CyclicLR, CosineAnnealingWarmRestarts, LambdaLR: the first step alone is wrong, by up to 24 times.
# 3. StepLR, PolynomialLR, CosineAnnealingLR, whose first factor is 1: all are right, so an exchange of schedules brings it up.
# Made before the optimizer's load, all are right to the bit. Nothing warns. (CyclicLR takes an entry out of the dict that it is given,
# so a dict loads once.)
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >rates.py <<'PY'
import copy

import torch
from torch.optim import lr_scheduler as kinds

print("torch", torch.__version__)


def warmup_and_cosine(optimizer):
    return kinds.SequentialLR(optimizer, [kinds.LinearLR(optimizer, 0.01, 1, 10), kinds.CosineAnnealingLR(optimizer, 90)], [10])


schedules = {
    "SequentialLR": (warmup_and_cosine, "all"),
    "ChainedScheduler": (lambda o: kinds.ChainedScheduler([kinds.LinearLR(o, 0.1, 1, 10), kinds.ExponentialLR(o, 0.99)]), "all"),
    "ConstantLR": (lambda o: kinds.ConstantLR(o, 0.5, 5), "all"),
    "OneCycleLR": (lambda o: kinds.OneCycleLR(o, 0.1, total_steps=200), "first"),
    "CyclicLR": (lambda o: kinds.CyclicLR(o, 0.001, 0.1), "first"),
    "WarmRestarts": (lambda o: kinds.CosineAnnealingWarmRestarts(o, 20), "first"),
    "LambdaLR": (lambda o: kinds.LambdaLR(o, lambda step: 1 / (1 + step)), "first"),
    "StepLR": (lambda o: kinds.StepLR(o, 7), "none"),
    "PolynomialLR": (lambda o: kinds.PolynomialLR(o, 100), "none"),
    "CosineAnnealingLR": (lambda o: kinds.CosineAnnealingLR(o, 100, eta_min=1e-5), "none"),
}


def new_optimizer():
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    return torch.optim.AdamW([parameter], lr=0.1)


def rates(optimizer, scheduler, steps):
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


for name, (make, expected) in schedules.items():
    optimizer = new_optimizer()
    scheduler = make(optimizer)
    rates(optimizer, scheduler, 23)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    right = rates(optimizer, scheduler, 60)

    optimizer = new_optimizer()
    scheduler = make(optimizer)
    scheduler.load_state_dict(copy.deepcopy(saved[1]))
    optimizer.load_state_dict(saved[0])
    assert rates(optimizer, scheduler, 60) == right, "CHANGED"

    optimizer = new_optimizer()
    optimizer.load_state_dict(saved[0])
    scheduler = make(optimizer)
    scheduler.load_state_dict(copy.deepcopy(saved[1]))
    found = rates(optimizer, scheduler, 60)
    wrong = [one != other for one, other in zip(found, right)]
    print(f"{name}: {sum(wrong)} of 60 rates are wrong; steps 1, 2 and 30: {found[0]:.5f} {found[1]:.5f} {found[29]:.5f}",
          f"for {right[0]:.5f} {right[1]:.5f} {right[29]:.5f}")
    assert wrong == {"all": [True] * 60, "first": [True] + [False] * 59, "none": [False] * 60}[expected], "CHANGED"
PY
venv/bin/python rates.py
