#!/usr/bin/env bash
# flax 0.12.8, jax 0.10.2: a LayerNorm of 8191 and 8193 is -316 and 316 for -1 and 1, as its variance comes out as 0.
#
# LayerNorm, GroupNorm and BatchNorm subtract the mean and divide by the deviation. Guess: in float32 the mean is subtracted first, or the
# sums are kept in such a way, so a mean of some thousands costs digits and no more; jnp.var() does so, and so do torch's norms. Seen:
# 1. flax takes the variance as mean(x^2) - mean(x)^2 in float32 and cuts it off at 0 (use_fast_variance=True, unless said otherwise). Of numbers
#    8192 - 1 and 8192 + 1 it is 0 for 1, and the output is divided by the root of epsilon alone, 1e-5.
# 2. The ratio of mean and deviation counts: normal numbers are off by 0.002 at 100, by 0.05 to 0.3 at 1000, and by 2 at 100 with a deviation of 0.01.
# 3. The same in flax.linen and flax.nnx. BatchNorm keeps that 0 in its running variance, so an evaluation is wrong as well.
# 4. use_fast_variance=False gives 1 and -1. So raw inputs (years, pressures) behind a BatchNorm, or a residual stream that has an offset, give
#    other numbers than the same model in PyTorch, with the same weights.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "flax==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

print("flax", flax.__version__, "jax", jax.__version__)
EPSILON = 1e-5
noise = np.random.default_rng(0).standard_normal((1, 512))
signs = np.tile([-1.0, 1.0], 256)[None]


def applied(norm, x):
    return norm.apply(norm.init(jax.random.key(0), x), x, mutable=["batch_stats"])


def normed(make, x, turned):
    """What a norm makes of float64 numbers that are given to it in float32."""
    x = x.astype(np.float32)
    seen = np.asarray(make(jnp.asarray(x.T if turned else x)), np.float64)
    return seen.T if turned else seen


def off(make, mean, deviation, turned):
    """How far an output is from the one of float64, at most."""
    x = (mean + deviation * noise).astype(np.float32).astype(np.float64)
    return np.abs(normed(make, x, turned) - (x - x.mean()) / np.sqrt(x.var() + EPSILON)).max()


norms = {
    "linen.LayerNorm": (lambda x: applied(linen.LayerNorm(epsilon=EPSILON), x)[0], False),
    "linen.GroupNorm": (lambda x: applied(linen.GroupNorm(num_groups=1, epsilon=EPSILON), x)[0], False),
    "linen.BatchNorm": (lambda x: applied(linen.BatchNorm(use_running_average=False, epsilon=EPSILON), x)[0], True),
    "nnx.LayerNorm": (lambda x: nnx.LayerNorm(512, epsilon=EPSILON, rngs=nnx.Rngs(0))(x), False),
    "use_fast_variance=False": (lambda x: applied(linen.LayerNorm(epsilon=EPSILON, use_fast_variance=False), x)[0], False),
}
for name, (make, turned) in norms.items():
    two = normed(make, 8192 + signs, turned)[0, :2]
    far = {(mean, deviation): off(make, mean, deviation, turned) for mean, deviation in ((0, 1), (100, 1), (1000, 1), (100, 0.01))}
    print(name, "of 8191 and 8193:", two.round(3), "off by", {key: float(f"{value:.2g}") for key, value in far.items()})
    fast = "False" not in name
    assert np.allclose(two, [-316.228, 316.228] if fast else [-1, 1], atol=1e-2) and far[0, 1] < 1e-4, "CHANGED"
    assert (far[1000, 1] > 0.01 and far[100, 0.01] > 0.1) if fast else max(far.values()) < 0.01, "CHANGED"
x = jnp.asarray((8192 + signs.T).astype(np.float32))
for fast in True, False:
    kept = applied(linen.BatchNorm(use_running_average=False, momentum=0.0, use_fast_variance=fast), x)[1]["batch_stats"]["var"][0]
    print(f"running variance, use_fast_variance={fast}: {float(kept):.4f}, jnp.var {float(jnp.var(x)):.4f}")
    assert float(kept) == (0 if fast else 1) and float(jnp.var(x)) == 1, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
