#!/usr/bin/env bash
# torch 2.13.0+cpu: get_state_dict() of an optimizer that has not stepped steps it, and the first real step is three quarters as long.
#
# torch.distributed.checkpoint.state_dict reads models and optimizers, for a checkpoint before the first step, say, or to have the tensors
# that dcp.load() fills. Guess: reading changes nothing; what is not there yet is left out, as optimizer.state_dict() does it. Seen:
# 1. get_state_dict() and get_optimizer_state_dict() give gradients of 0, set the rate to 0, step, and put back the rate, but not the count:
#    "step" is 1 and the moments are there. So the first step is the second one: AdamW moves the weight by 0.0744 for 0.1, and later
#    steps differ as well: a job that saves at step 0 is another one than a job that does not.
# 2. Adam with weight_decay has moments of the weights themselves afterwards, not of 0, which lengthens or shortens the first steps.
# 3. If any parameter has a gradient it does not step, and the state that is read is empty. optimizer.state_dict() never steps.
# What dcp.load() fills and set_optimizer_state_dict() sets afterwards is right: it overwrites what the step left.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >read.py <<'PY'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict

print("torch", torch.__version__)


def first_step(read, kind=torch.optim.AdamW, decay=0.0, gradient_before=False):
    """What was read, the moments behind it, and how far the first step of gradient 1 moves a weight of 1."""
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(net.weight)
    optimizer = kind(net.parameters(), lr=0.1, weight_decay=decay)
    if gradient_before:
        net.weight.grad = torch.ones_like(net.weight)
    seen = read(net, optimizer)
    moment = optimizer.state[net.weight].get("exp_avg", torch.zeros(1)).item() if optimizer.state else None
    before = net.weight.item()
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    return seen, moment, before - net.weight.item(), optimizer.state[net.weight]["step"].item()


def nothing(net, optimizer):
    return None


def plain(net, optimizer):
    return optimizer.state_dict()


def of_optimizer(net, optimizer):
    return get_optimizer_state_dict(net, optimizer)


def of_both(net, optimizer):
    return get_state_dict(net, optimizer)[1]


for read in (nothing, plain, of_optimizer, of_both):
    _, _, moved, count = first_step(read)
    print(f"AdamW, {read.__name__}: the first step moves {moved:.4f}, its count is {count}")
    stepped = read in (of_optimizer, of_both)
    assert count == (2 if stepped else 1) and abs(moved - (0.0744 if stepped else 0.1)) < 1e-3, "CHANGED"
for read in (nothing, of_both):
    _, moment, moved, _ = first_step(read, torch.optim.Adam, decay=0.5)
    print(f"Adam with weight_decay 0.5, {read.__name__}: first moment {moment}, the first step moves {moved:.4f}")
    assert (moment is None) == (read is nothing) and (moment is None or moment > 0.04), "CHANGED"
seen, moment, moved, count = first_step(of_both, gradient_before=True)
print(f"AdamW with a gradient before: what was read {seen}, the first step moves {moved:.4f}")
assert not seen["state"] and count == 1, "CHANGED"
PY
venv/bin/python read.py 2>err.log || { cat err.log; exit 1; }
