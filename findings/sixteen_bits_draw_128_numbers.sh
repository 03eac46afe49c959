#!/usr/bin/env bash
# jax 0.10.2, keras 3.15.1 (over JAX): of 50,000 tokens that are equally likely, bfloat16 logits draw the first thousand only.
#
# jax.random.categorical(key, logits) draws a token, jax.random.normal(key, shape, jnp.bfloat16) a weight. Guess: in bfloat16 what is drawn is rounded to 8
# bits, as torch and MLX draw it: a token by its probability, a normal number with tails as long as float32's. Seen:
# 1. 500 tokens of equal bfloat16 logits are all below 1,000, half of them below 100; of float16 below 7,000; float32 draws up to the end. Noise is
#    made of as many random bits as the type has: 128 values in bfloat16, so the largest is there hundreds of times and the first of these wins.
# 2. keras.random.categorical is alike. torch.multinomial and mlx.core.random.categorical of bfloat16 draw from all 50,000.
# 3. So are all numbers: a million normal ones have 128 values, none above 2.52 or below -2.9, and a mean of -0.012; exponential ones are 2.6 %
#    short on average; logistic ones have a deviation of 7.8 for 1.8. A weight that is initialised in bfloat16 has 128 values.
# 4. bernoulli() with a probability of 0.001 in bfloat16 is true 8 times as often.
# logits.astype(jnp.float32), and drawing in float32 before a cast, are right. mode="high", an option of categorical(), reaches all tokens and still
# prefers the first half: four of five draws.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2" "keras==3.15.1" "mlx[cpu]==0.32.4" "numpy==2.4.6" 2>pip.log ||
    { cat pip.log; exit 1; }
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" 2>pip.log || { cat pip.log; exit 1; }

cat >draw.py <<'PY'
import os

os.environ.update(JAX_PLATFORMS="cpu", KERAS_BACKEND="jax")
import jax
import jax.numpy as jnp
import keras
import mlx.core as mx
import numpy as np
import torch

print("jax", jax.__version__, "keras", keras.__version__, "mlx", mx.__version__, "torch", torch.__version__)
TOKENS, DRAWS, MANY = 50_000, 500, 1_000_000
key = jax.random.key(0)
torch.manual_seed(0)


def told(name, drawn, first_only):
    drawn = np.asarray(drawn).ravel()
    print(f"{name}: of {TOKENS} equal tokens {drawn.size} draws are up to {drawn.max()}, half of them up to {int(np.median(drawn))}")
    assert (drawn.max() < TOKENS / 5 if first_only else drawn.max() > TOKENS * 0.97 and np.median(drawn) > TOKENS * 0.4), f"CHANGED: {name}"
    return drawn


for dtype in ("float32", "float16", "bfloat16"):
    short = dtype != "float32"
    drawn = told(f"jax, {dtype}", jax.random.categorical(key, jnp.zeros(TOKENS, dtype), shape=(DRAWS,)), short)
    assert dtype != "bfloat16" or drawn.max() < 1000 and np.median(drawn) < 120, "CHANGED"
    told(f"keras, {dtype}", keras.random.categorical(jnp.zeros((1, TOKENS), dtype), DRAWS, seed=1), short)
told("torch, bfloat16", torch.multinomial(torch.ones(TOKENS, dtype=torch.bfloat16).expand(DRAWS, TOKENS), 1), False)
told("mlx, bfloat16", mx.random.categorical(mx.zeros(TOKENS, dtype=mx.bfloat16), num_samples=DRAWS), False)
high = np.asarray(jax.random.categorical(key, jnp.zeros(TOKENS, jnp.bfloat16), shape=(DRAWS,), mode="high"))
print(f"jax, bfloat16, mode high: up to {high.max()}, {np.mean(high < TOKENS / 2):.2f} of them in the first half")
assert high.max() > TOKENS * 0.9 and np.mean(high < TOKENS / 2) > 0.65, "CHANGED"

for name in ("normal", "exponential", "logistic"):
    wide, narrow = (np.asarray(getattr(jax.random, name)(key, (MANY,), dtype), np.float64) for dtype in (jnp.float32, jnp.bfloat16))
    for x, label in ((wide, "float32"), (narrow, "bfloat16")):
        print(f"{name}, {label}: {len(np.unique(x))} values from {x.min():.3f} to {x.max():.3f}, mean {x.mean():.4f}, deviation {x.std():.4f}")
    assert len(np.unique(narrow)) == 128, f"CHANGED: {name}"
    if name == "normal":
        assert narrow.max() < 2.53 and narrow.min() > -2.9 and narrow.mean() < -0.008 and wide.max() > 4.3, "CHANGED"
    if name == "exponential":
        assert narrow.mean() < 0.98 and abs(wide.mean() - 1) < 0.01, "CHANGED"
    if name == "logistic":
        assert narrow.std() > 6 and wide.std() < 2, "CHANGED"
weights = jax.nn.initializers.lecun_normal()(key, (1000, 1000), jnp.bfloat16)
print("a weight initialised in bfloat16 has", len(jnp.unique(weights)), "values of a million")
assert len(jnp.unique(weights)) == 128, "CHANGED"
ordinary = torch.randn(MANY, dtype=torch.bfloat16)
print(f"torch.randn in bfloat16: {len(ordinary.unique())} values from {ordinary.min().item():.3f} to {ordinary.max().item():.3f}")
assert ordinary.max() > 4 and len(ordinary.unique()) > 1000
for dtype, expected in ((jnp.float32, 0.001), (jnp.bfloat16, 0.008)):
    share = jax.random.bernoulli(key, jnp.asarray(0.001, dtype), (MANY,)).astype(jnp.float32).mean().item()
    print(f"bernoulli(0.001), {dtype.__name__}: {share:.5f}")
    assert abs(share / expected - 1) < 0.15, "CHANGED"
PY
venv/bin/python draw.py 2>err.log || { cat err.log; exit 1; }
