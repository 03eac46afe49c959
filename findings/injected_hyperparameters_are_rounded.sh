#!/usr/bin/env bash
# optax 0.2.8, jax 0.10.2: inject_hyperparams rounds an optimizer's numbers to the type of the gradients, and 0.999 is 1 in bfloat16.
#
# optax.inject_hyperparams(optax.adam)(learning_rate=...) keeps the numbers of an optimizer in its state, so that a rate can be seen, saved or changed.
# Guess: the optimizer is the same one; moments may be of the parameters' type, its numbers are Python's or float32. Seen:
# 1. With bfloat16 gradients b2=0.999, the default, is 1: the first step of adam and adamw is NaN in every weight. From 0.9981 on every b2 is 1, and
#    with float16 gradients 0.9999 is. Without inject_hyperparams the first step is 0.001.
# 2. rmsprop with decay=0.999 has no NaN: its mean of squares stays 0, and each step is 5 for 0.03, 158 times as long.
# 3. b1=0.9 is 0.8984, and a rate of 1e-3 is 0.000999: milder numbers are rounded without a word.
# 4. hyperparam_dtype=jnp.float32 keeps them, and steps are as without inject_hyperparams.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "optax==0.2.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import jax
import jax.numpy as jnp
import optax

print("optax", optax.__version__, "jax", jax.__version__)


def first_step(optimizer, dtype):
    weights = jnp.ones(4, dtype)
    updates, state = optimizer.update(jnp.full(4, 0.5, dtype), optimizer.init(weights), weights)
    return float(updates[0]), state


inject = optax.inject_hyperparams
for dtype, b2 in ((jnp.float32, 0.999), (jnp.bfloat16, 0.998), (jnp.bfloat16, 0.999), (jnp.float16, 0.999), (jnp.float16, 0.9999)):
    plain, injected = first_step(optax.adam(1e-3, b2=b2), dtype)[0], first_step(inject(optax.adam)(1e-3, b2=b2), dtype)[0]
    named = first_step(inject(optax.adam, hyperparam_dtype=jnp.float32)(1e-3, b2=b2), dtype)[0]
    print(f"{dtype.__name__}, b2 {b2}: first step {plain:.6f}, injected {injected:.6f}, injected as float32 {named:.6f}")
    assert abs(plain + 1e-3) < 1e-5 and abs(named + 1e-3) < 1e-5, "CHANGED"
    assert (injected != injected) == ((dtype, b2) in ((jnp.bfloat16, 0.999), (jnp.float16, 0.9999))), "CHANGED"
adamw = first_step(inject(optax.adamw)(1e-3), jnp.bfloat16)
numbers = {name: float(value) for name, value in adamw[1].hyperparams.items()}
print("adamw in bfloat16:", adamw[0], numbers)
assert adamw[0] != adamw[0] and numbers["b2"] == 1 and numbers["b1"] == 0.8984375 and numbers["learning_rate"] != 1e-3, "CHANGED"
plain, injected = first_step(optax.rmsprop(1e-3, decay=0.999), jnp.bfloat16)[0], first_step(inject(optax.rmsprop)(1e-3, decay=0.999), jnp.bfloat16)[0]
print(f"rmsprop in bfloat16: first step {plain:.4f}, injected {injected:.4f}")
assert injected == -5 and -0.04 < plain < -0.03, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
