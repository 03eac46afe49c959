#!/usr/bin/env bash
# torch 2.13.0+cpu (Python): Optimizer.load_state_dict gives all state but "step" the parameter's type.
#
# An optimizer of one's own keeps float32 values beside parameters of bfloat16, or counts in integers. Guess: what state_dict() has is
# what load_state_dict() brings back. Seen, without a warning:
# 1. Masters in float32 are bfloat16 after a load: 0.9995 has become 1, and what five steps had moved is lost.
# 2. An int64 count of 1001 beside a parameter of bfloat16 becomes the bfloat16 1000; 16777217 beside one of float32 the float32
#    16777216.
# 3. State under the name "step" alone is left as it is: float32 and int64 stay so.
# So a job that goes on from a checkpoint is not the job that was saved; state has to be put into `optimizer.state` by hand.
#
# Fails if it changes. Takes about a minute, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >masters.py <<'EOF'
import torch

print("torch", torch.__version__)


class Mastered(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.detach().float().clone()
                state["count"] = torch.tensor([996, 16777212])
                state["step"] = torch.tensor(16777212)
            state["master"] -= 1e-4 * parameter.grad.float()
            state["count"] += 1
            state["step"] += 1
            parameter.copy_(state["master"])


def after_load(dtype):
    """The state of a parameter of ones after five steps, before and after it went through a dict."""
    def make():
        parameter = torch.nn.Parameter(torch.ones(2, dtype=dtype))
        return parameter, Mastered([parameter])

    parameter, optimizer = make()
    for _ in range(5):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    other, again = make()
    again.load_state_dict(optimizer.state_dict())
    return optimizer.state[parameter], again.state[other]


saved, loaded = after_load(torch.bfloat16)
print("bfloat16:", saved, "->", loaded)
assert saved["master"].dtype == torch.float32 and saved["master"][0].item() < 0.9996
assert loaded["master"].dtype == torch.bfloat16 and loaded["master"][0].item() == 1, "CHANGED: masters keep their type"
assert loaded["count"].dtype == torch.bfloat16 and loaded["count"][0].item() == 1000, "CHANGED: counts keep their type"
assert loaded["step"].dtype == torch.int64 and loaded["step"].item() == 16777217, "CHANGED: step is treated like the rest"
saved, loaded = after_load(torch.float32)
print("float32:", saved, "->", loaded)
assert saved["count"][1].item() == 16777217
assert loaded["count"].dtype == torch.float32 and loaded["count"][1].item() == 16777216, "CHANGED: counts keep their type"
EOF
venv/bin/python masters.py 2>err.log || { cat err.log; exit 1; }
