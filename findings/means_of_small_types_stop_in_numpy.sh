#!/usr/bin/env bash
# numpy 2.4.6, ml_dtypes 0.6.0, jax 0.10.2: the mean of a thousand bfloat16 ones is 0.256 in NumPy, and 0.0156 of float8.
#
# ml_dtypes gives NumPy bfloat16, float8 and int4; what JAX hands out, np.asarray(x), is of these. Guess: as with NumPy's own float16, whose
# mean is taken in float32 and whose sum in pairs; JAX's own sums are right. Seen of arrays of ones:
# 1. sum() adds one after the other in the small type: bfloat16 stops at 256, float8_e4m3fn at 16, float8_e5m2 at 8. mean() divides that: 0.256,
#    0.0156, 0.0078 for 1; a million of them have a mean of 0.000256. std() is 0.504 for 0, along an axis too.
# 2. np.mean() of what jax.device_get() returned, the bfloat16 losses of an epoch, is of this kind: two thousand losses of 2 have a mean of 0.256.
# 3. int4 wraps: a thousand ones sum to -8, mean() is 0.
# 4. np.abs(a - b).mean() of two bfloat16 checkpoints that are 1 apart everywhere says 0.004 for 65,536 weights.
# 5. dtype=np.float32 in sum() and mean(), astype() before, np.linalg.norm(), and jnp.mean() are right.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "numpy==2.4.6" "ml_dtypes==0.6.0" "jax==0.10.2" "jaxlib==0.10.2" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__, "jax", jax.__version__)


def seen(dtype, count=1000):
    ones = np.ones(count, dtype)
    return float(ones.sum()), round(float(ones.mean()), 6), round(float(ones.std()), 4)


expected = {
    ml_dtypes.bfloat16: (256, 0.255859, 0.5039),
    ml_dtypes.float8_e4m3fn: (16, 0.015625, 0.125),
    ml_dtypes.float8_e5m2: (8, 0.007812, 0.0938),
    ml_dtypes.int4: (-8, 0, 0),
    np.float16: (1000, 1, 0),
}
for dtype, values in expected.items():
    print(f"a thousand ones of {dtype.__name__}: sum, mean, deviation {seen(dtype)}")
    assert seen(dtype) == values, "CHANGED"
    assert float(np.ones(1000, dtype).mean(dtype=np.float32)) == 1 and float(np.ones(1000, dtype).sum(dtype=np.float32)) == 1000, "CHANGED"
along = np.ones((1000, 2), ml_dtypes.bfloat16).mean(0), np.ones((2, 1000), ml_dtypes.bfloat16).mean(1)
print("means along axes:", *along)
assert all((mean.astype(np.float32) == 0.255859375).all() for mean in along), "CHANGED"
million = float(np.ones(1_000_000, ml_dtypes.bfloat16).mean())
print("mean of a million:", million)
assert abs(million - 0.000256) < 1e-6, "CHANGED"
losses = [jnp.asarray(2, jnp.bfloat16)] * 2000
mean, right = float(np.mean(jax.device_get(losses))), float(jnp.mean(jnp.stack(losses)))
print("two thousand losses of 2: np.mean", mean, "jnp.mean", right)
assert abs(mean - 0.256) < 1e-3 and right == 2, "CHANGED"
one, other = (np.asarray(jnp.full((256, 256), value, jnp.bfloat16)) for value in (1, 2))
apart = float(np.abs(one - other).mean())
print("mean distance of two checkpoints that are 1 apart:", apart, "by np.linalg.norm:", float(np.linalg.norm(one - other)) / 256)
assert apart == 0.00390625 and float(np.linalg.norm(one - other)) == 256, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
