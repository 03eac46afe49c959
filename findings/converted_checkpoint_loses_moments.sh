#!/usr/bin/env bash
# torch 2.13.0+cpu: an optimizer that went through torch.distributed.checkpoint and dcp_to_torch_save has lost its moments.
#
# dcp_to_torch_save turns a distributed checkpoint into one file of torch.save. Guess: the file holds what was saved, and
# load_state_dict() of it goes on as if nothing had happened, or raises. Seen, for Adam saved as optimizer.state_dict():
# 1. The file has the state under the texts "0", "1", ... where it was saved under numbers; all else is equal (empty dicts are left out).
# 2. load_state_dict() takes it and does not raise: it keeps the state under these texts, beside the parameters.
# 3. The next step starts Adam anew: its count is 1 beside the saved 5, moments are zero, and the step goes another way.
# With the keys turned back into numbers the step is that of the run that was saved.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >moments.py <<'PY'
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

print("torch", torch.__version__)


def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer, factor):
    optimizer.zero_grad()
    (factor * model(torch.tensor([[1.0, 2.0]]))).sum().backward()
    optimizer.step()


model, optimizer = make()
for _ in range(5):
    step(model, optimizer, 100.0)
dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id="distributed")
dcp_to_torch_save("distributed", "one.pt")
saved = torch.load("one.pt")
keys = list(saved["optimizer"]["state"]), list(optimizer.state_dict()["state"])
print("keys of the state: in the file", keys[0], "as saved", keys[1])


def resumed(state):
    model, optimizer = make()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(state)
    step(model, optimizer, 1.0)
    return model.weight.detach(), [int(one["step"]) for one in optimizer.state.values()]


mended = dict(saved["optimizer"], state={int(key): value for key, value in saved["optimizer"]["state"].items()})
lost, kept = resumed(saved["optimizer"]), resumed(mended)
step(model, optimizer, 1.0)
right = model.weight.detach()
print("weights after one more step: saved run", right, "file as it is", lost[0], "keys turned back", kept[0])
print("counts of steps: file as it is", lost[1], "keys turned back", kept[1])
assert torch.equal(kept[0], right) and kept[1] == [6, 6]
assert keys[0] == ["0", "1"] and not torch.equal(lost[0], right) and sorted(lost[1]) == [1, 1, 5, 5], "CHANGED: moments are there"
PY
venv/bin/python moments.py 2>err.log || { cat err.log; exit 1; }
