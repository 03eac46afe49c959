#!/usr/bin/env bash
# torch 2.13.0+cpu: the average of 1000 bfloat16 models is that of the first 256 or so.
#
# torch.optim.swa_utils.AveragedModel(model) averages the weights of a run, equally or with a decay. Guess: the average is kept in float32, or its
# errors are those of rounding, up and down, as it is a mean of n numbers of one size. Seen of weights that move from 1 to 2, with noise of 0.1:
# 1. bfloat16, equal weights: the average of 100 models is off by 0.04, of 300 by 0.37 (too small), of 1000 by 0.47, of 3000 by 0.49: it stands still
#    near 1.03 where 1.5 is the mean. Each model moves the average by 1/n of its distance, and that is less than half a step of bfloat16 soon.
# 2. float16: 1000 models are right to 0.006, 3000 are off by 0.41. float32 is right.
# 3. get_ema_multi_avg_fn(0.999), from 0, of weights that are 1: it stops at 0.25, where float32 has 0.99 after 5000 steps.
# 4. averaged.module.float() behind the construction keeps the equal average in float32, and it is right; with get_ema_multi_avg_fn it raises, as
#    lerp wants one type.
# Nothing warns; a model that is close to the early ones in the run evaluates well enough to be taken for an average that does not help.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >average.py <<'PY'
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

print("torch", torch.__version__)
WIDTH = 1000


def error(dtype, models, keep=None):
    """The mean difference of AveragedModel and the mean of all models, in float64."""
    model = torch.nn.Linear(WIDTH, 1, bias=False, dtype=dtype)
    averaged = AveragedModel(model)
    if keep is not None:
        averaged.module.to(keep)
    noise = torch.Generator().manual_seed(1)
    mean = torch.zeros(WIDTH, dtype=torch.double)
    for step in range(models):
        with torch.no_grad():
            model.weight.copy_(1 + step / models + 0.1 * torch.randn(1, WIDTH, generator=noise))
        averaged.update_parameters(model)
        mean += model.weight[0].detach().double() / models
    return (averaged.module.weight[0].double() - mean).mean().item()


def decayed(dtype):
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    averaged.update_parameters(model)
    torch.nn.init.ones_(model.weight)
    for _ in range(5000):
        averaged.update_parameters(model)
    return averaged.module.weight.item()


for models, bfloat16, float16 in ((100, 0.04, 0), (300, -0.37, 0), (1000, -0.47, 0.006), (3000, -0.49, -0.41)):
    found = [error(dtype, models) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    print(f"{models} models: float32 off by {found[0]:.6f}, bfloat16 by {found[1]:.4f}, float16 by {found[2]:.4f}")
    assert abs(found[0]) < 1e-5 and abs(found[1] - bfloat16) < 0.02 and abs(found[2] - float16) < 0.02, "CHANGED"
kept = error(torch.bfloat16, 1000, torch.float32)
print(f"1000 models of bfloat16, the average in float32: off by {kept:.6f}")
assert abs(kept) < 1e-5, "CHANGED"
single, half = decayed(torch.float32), decayed(torch.bfloat16)
print(f"decay 0.999 for 5000 steps: float32 {single:.4f}, bfloat16 {half}")
assert single > 0.99 and half < 0.3, "CHANGED"
model = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
averaged.module.float()
try:
    for _ in range(2):
        averaged.update_parameters(model)
    raise SystemExit("CHANGED: a decayed average in float32 takes bfloat16 weights")
except RuntimeError as error:
    print("a decayed average in float32:", str(error)[:80])
PY
venv/bin/python average.py 2>err.log || { cat err.log; exit 1; }
