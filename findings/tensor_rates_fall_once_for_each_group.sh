#!/usr/bin/env bash
# torch 2.13.0+cpu: with a rate that is a tensor, ReduceLROnPlateau lowers it once for each group of parameters.
#
# Rates may be tensors, lr=torch.tensor(0.1), which compiled and captured steps want. Guess: rates go as with lr=0.1, group by group. Seen of SGD
# and AdamW with groups that are given no rate of their own:
# 1. All groups hold one tensor, the caller's. ReduceLROnPlateau(factor=0.5), once without progress, gives 0.05 with one group, 0.025 with two,
#    0.00625 with four; with lr=0.1 it is 0.05 for all. Nothing warns, and its min_lr is reached the sooner.
# 2. So does a loop of one's own, for group in optimizer.param_groups: group["lr"] *= 0.5.
# 3. StepLR, ExponentialLR, MultiplicativeLR and LambdaLR, which compute all rates before they write one, are right; LambdaLR with a function
#    for each group gives all groups the last one's rate.
# 4. The tensor that the caller passed moves with it: a second optimizer made with it begins at the lowered rate, and follows the first.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >groups.py <<'PY'
import torch
from torch.optim import SGD, AdamW, lr_scheduler

print("torch", torch.__version__)


def make(kind, groups, lr):
    return kind([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)], lr=lr)


def rates(optimizer):
    return [round(float(group["lr"]), 6) for group in optimizer.param_groups]


def plateau(optimizer):
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for loss in (1.0, 1.0):
        optimizer.step()
        scheduler.step(loss)


def by_hand(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


for kind in (SGD, AdamW):
    for what, lower in (("ReduceLROnPlateau", plateau), ("by hand", by_hand)):
        for groups in (1, 2, 4):
            found = []
            for lr in (0.1, torch.tensor(0.1)):
                optimizer = make(kind, groups, lr)
                lower(optimizer)
                found.append(rates(optimizer))
            print(f"{kind.__name__}, {groups} groups, {what}: {found[1]} with a tensor, {found[0]} with a number")
            assert found[0] == [0.05] * groups and found[1] == [round(0.1 * 0.5**groups, 6)] * groups, "CHANGED"

for make_schedule in (lambda o: lr_scheduler.StepLR(o, 1, 0.5), lambda o: lr_scheduler.ExponentialLR(o, 0.5),
                      lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.5), lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step)):
    optimizer = make(SGD, 2, torch.tensor(0.1))
    schedule = make_schedule(optimizer)
    optimizer.step()
    schedule.step()
    print(type(schedule).__name__, rates(optimizer))
    assert rates(optimizer) == [0.05, 0.05], "CHANGED"

found = []
for lr in (0.1, torch.tensor(0.1)):
    optimizer = make(SGD, 2, lr)
    lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.1])
    found.append(rates(optimizer))
print("LambdaLR with a function for each group:", found[1], "for", found[0])
assert found == [[0.1, 0.01], [0.01, 0.01]], "CHANGED"

lr = torch.tensor(0.1)
first, second = make(SGD, 1, lr), make(SGD, 1, lr)
plateau(first)
print("the caller's tensor:", round(lr.item(), 6), "; a second optimizer:", rates(second))
assert rates(second) == [0.05] and round(lr.item(), 6) == 0.05, "CHANGED: the tensor is copied"
PY
venv/bin/python groups.py 2>err.log || { cat err.log; exit 1; }
