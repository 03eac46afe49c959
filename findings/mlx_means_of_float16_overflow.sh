#!/usr/bin/env bash
# mlx 0.32.4 (CPU): the mean of a float16 array is infinite once its sum is above 65504; running sums of bfloat16 stop at 256.
#
# A loss is the mean over tokens, a norm's variance the mean over a row. Guess: reductions of 16 bits are added in float32, as torch, NumPy's
# and JAX's means do. Seen, nothing said:
# 1. mean() of 70,000 float16 ones is inf, also with axis, and so are var() and std(); torch, NumPy and JAX say 1. 65,504 ones are 0.9995.
# 2. mean() of bfloat16 is right, as its sum cannot overflow; sum() of 100,000 ones is 99,840, the nearest bfloat16.
# 3. cumsum() of bfloat16 ones stops at 256, of float16 ones at 2048, as it adds in the array's type; torch's and JAX's of 5,000 ones end at 4992 in
#    bfloat16, the nearest number. (NumPy's of float16 stops at 2048, too.)
# Right: astype(mx.float32) before the mean.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "mlx[cpu]==0.32.4" "jax[cpu]==0.10.2" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import warnings

import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import torch

warnings.simplefilter("ignore")
ones = mx.ones((70_000,), dtype=mx.float16)
seen = {
    "mean": mx.mean(ones).item(),
    "mean of a row": mx.mean(mx.ones((2, 70_000), dtype=mx.float16), axis=1)[0].item(),
    "var": mx.var(ones).item(),
    "std": mx.std(ones).item(),
}
others = {
    "torch": torch.ones(70_000, dtype=torch.float16).mean().item(),
    "numpy": float(np.ones(70_000, np.float16).mean()),
    "jax": float(jnp.ones(70_000, jnp.float16).mean()),
}
print("mlx", mx.__version__, seen, "others' means", others)
assert all(not np.isfinite(value) for value in seen.values()) and all(value == 1 for value in others.values()), "CHANGED"
edge = mx.mean(mx.ones((65_504,), dtype=mx.float16)).item()
print("65,504 ones:", edge)
assert 0.999 < edge < 1, "CHANGED"

wide = mx.ones((100_000,), dtype=mx.bfloat16)
print("bfloat16: mean", mx.mean(wide).item(), "sum", mx.sum(wide).item(), "running sum", mx.cumsum(wide)[-1].item())
assert (mx.mean(wide).item(), mx.sum(wide).item(), mx.cumsum(wide)[-1].item()) == (1, 99_840, 256), "CHANGED"
running = {
    "mlx float16": mx.cumsum(mx.ones((5_000,), dtype=mx.float16))[-1].item(),
    "torch bfloat16": torch.ones(5_000, dtype=torch.bfloat16).cumsum(0)[-1].item(),
    "torch float16": torch.ones(5_000, dtype=torch.float16).cumsum(0)[-1].item(),
    "jax bfloat16": float(jnp.cumsum(jnp.ones(5_000, jnp.bfloat16))[-1]),
    "numpy float16": float(np.cumsum(np.ones(5_000, np.float16))[-1]),
}
print("running sums of 5,000 ones:", running)
assert running == {"mlx float16": 2048, "torch bfloat16": 4992, "torch float16": 5000, "jax bfloat16": 4992, "numpy float16": 2048}, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
