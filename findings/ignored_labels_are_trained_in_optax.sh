#!/usr/bin/env bash
# optax 0.2.8, jax 0.10.2: labels of -100, which are to be ignored, are token V - 100 of a vocabulary of V, and are trained.
#
# Data made for torch or transformers mark what has no loss by -100. Guess: softmax_cross_entropy_with_integer_labels ignores such labels, or gives NaN
# or raises, as no class has that number. Seen:
# 1. The index counts from the end, as in a Python list: with 32000 tokens the label is token 31900, with 100 it is token 0. The loss is a usual
#    one (log V in the beginning), the gradient pulls to that token at every place of padding or of a prompt, and nothing is said.
# 2. With fewer than 100 classes the loss is NaN, so a small test of the same data stops where the real run does not.
# 3. one_hot(labels, V) with softmax_cross_entropy has loss and gradient 0 there, so the two losses, equal elsewhere, differ.
# So mask by hand: labels made 0 there, and .mean(where=labels >= 0) of the losses.
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
label = jnp.array([-100])


def with_integers(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).sum()


def with_one_hot(logits):
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(label, logits.shape[-1])).sum()


for classes in (32000, 1000, 100, 50):
    loss, gradient = jax.value_and_grad(with_integers)(jnp.zeros((1, classes)))
    other, none = jax.value_and_grad(with_one_hot)(jnp.zeros((1, classes)))
    token = int(gradient[0].argmin())
    print(f"{classes} classes: loss {float(loss):.3f}, pulls to token {token} ({float(gradient[0, token]):.3f}); by one_hot {abs(float(other)):.3f}")
    assert float(other) == 0 and not none.any(), "CHANGED"
    if classes < 100:
        assert jnp.isnan(loss), "CHANGED"
    else:
        assert token == classes - 100 and gradient[0, token] < -0.98 and abs(loss - jnp.log(classes)) < 1e-3, "CHANGED"
logits, labels = jax.random.normal(jax.random.key(0), (4, 1000)), jnp.array([5, -100, 7, -100])
mixed = float(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean())
kept = labels >= 0
right = float(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(kept, labels, 0)).mean(where=kept))
print(f"mean of two labels and two that are ignored: {mixed:.3f} for {right:.3f}")
assert abs(mixed - right) > 0.01, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
