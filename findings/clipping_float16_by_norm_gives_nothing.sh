#!/usr/bin/env bash
# optax 0.2.8, keras 3.15.1, jax 0.10.2: clipping gradients of float16 by a norm above 256 makes all of them 0, or NaN.
#
# Clipping shortens gradients that are too long to max_norm. Guess: squares of float16 are summed in float32, as torch and MLX do it and as
# jnp.mean() does; were the norm infinite, something would say so. Seen of gradients of float16 that all are finite:
# 1. optax.global_norm() is infinite above 256, as the sum of squares is a float16 and 65504 the largest one. clip_by_global_norm(1) then
#    divides by infinity: every update is 0. Where gradients are long nothing is trained, and nothing is raised.
# 2. So is every update of normalize_by_update_norm(), adaptive_grad_clip() and lars().
# 3. Downwards: the norm of a thousand gradients of 1e-4 is 0 for 0.00316.
# 4. Keras (over JAX) of float16 variables: clipnorm gives 0, global_clipnorm NaN.
# 5. Of bfloat16 and float32 all are right, and of float16 up to 255: cast gradients to float32 before the chain.
#
# Fails if it changes. Takes a minute or two, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "optax==0.2.8" "keras==3.15.1" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import os

os.environ["KERAS_BACKEND"] = "jax"
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

print("optax", optax.__version__, "keras", keras.__version__, "jax", jax.__version__)


def gradients(norm, dtype):
    """Four equal gradients of that norm."""
    return {"weight": jnp.full(4, norm / 2, dtype)}


def first(transformation, norm, dtype=jnp.float16):
    """The first update that a transformation makes of gradients of that norm, for weights of 1."""
    weights = {"weight": jnp.ones(4, dtype)}
    update, _ = transformation.update(gradients(norm, dtype), transformation.init(weights), weights)
    return float(update["weight"][0])


for norm, dtype in (250, jnp.float16), (260, jnp.float16), (1000, jnp.float16), (1000, jnp.bfloat16), (1000, jnp.float32):
    measured, clipped = float(optax.global_norm(gradients(norm, dtype))), first(optax.clip_by_global_norm(1.0), norm, dtype)
    print(f"{dtype.__name__} of norm {norm}: global_norm {measured}, a gradient of {norm / 2} clipped to norm 1 is {clipped}")
    lost = dtype == jnp.float16 and norm > 256
    assert (np.isinf(measured) and clipped == 0) if lost else (abs(measured / norm - 1) < 0.01 and abs(clipped - 0.5) < 0.01), "CHANGED"
small = float(optax.global_norm({"weight": jnp.full(1000, 1e-4, jnp.float16)}))
print("norm of a thousand float16 gradients of 1e-4:", small)
assert small == 0, "CHANGED"
others = {
    "normalize_by_update_norm": first(optax.normalize_by_update_norm(), 300),
    "adaptive_grad_clip": first(optax.adaptive_grad_clip(0.1), 300),
    "lars": first(optax.lars(0.1), 300),
}
print("norm 300, float16:", others)
assert set(others.values()) == {0}, "CHANGED"


def trained(norm, dtype, **clipping):
    """A weight of 0 behind one step of Keras's SGD of rate 1."""
    weight = keras.Variable(np.zeros(4), dtype=dtype)
    optimizer = keras.optimizers.SGD(1.0, **clipping)
    optimizer.build([weight])
    optimizer.apply([keras.ops.convert_to_tensor(np.full(4, norm / 2, dtype))], [weight])
    return float(keras.ops.convert_to_numpy(weight)[0])


for clipping in {"clipnorm": 1.0}, {"global_clipnorm": 1.0}:
    seen = {(dtype, norm): trained(norm, dtype, **clipping) for dtype, norm in (("float16", 250), ("float16", 260), ("float32", 260))}
    print("keras", clipping, seen)
    assert abs(seen["float16", 250] + 0.5) < 0.01 and abs(seen["float32", 260] + 0.5) < 0.01, "CHANGED"
    assert seen["float16", 260] == 0 if "clipnorm" in clipping else np.isnan(seen["float16", 260]), "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
