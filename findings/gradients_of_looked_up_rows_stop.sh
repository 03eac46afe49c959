#!/usr/bin/env bash
# torch 2.13.0, jax 0.10.2, mlx 0.32.4: the gradient of an embedding of 16 bits stops at 256 tokens of a kind; scan stops as well.
#
# A token that comes 5000 times in a batch has 5000 gradients, which are summed. Guess: in float32, and rounded once, as sum(), mean(), products of
# matrices and the gradients of a Linear are in all three libraries; whichever way a row is looked up. Seen of gradients of 1, 5000 times:
# 1. torch, bfloat16: embedding, embedding_bag, table[ids] and index_put_(accumulate=True) give 256, in float16 2048: the sum is kept in the
#    table's type. index_select, gather, index_add_ and scatter_add_ of the same table give 4992, the nearest number to 5000.
# 2. jax: table[ids], jnp.take, .at[].add, segment_sum and bincount(weights=) give 256, in float16 2048; the product with one_hot gives 4992. Under jit
#    too, and where the loss is computed in float32.
# 3. jax: a weight that lax.scan uses in each of 5000 steps has 256 as well; under vmap it is 4992.
# 4. mlx: table[ids], take and .at[].add give 256.
# 5. torch.segment_reduce(x, "mean") of 20,000 bfloat16 ones is 0.0128, so it is in a forward as well.
# So frequent tokens, spaces or padding, learn less than rare ones, and nothing says so. Tables of float32 have none of it.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2" "mlx[cpu]==0.32.4" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" 2>pip.log || { cat pip.log; exit 1; }

cat >rows.py <<'PY'
import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import mlx.core as mx
import torch
from torch.nn import functional as f

print("torch", torch.__version__, "jax", jax.__version__, "mlx", mx.__version__)
COUNT = 5000


def told(library, dtype, found, stops):
    whole, stop = {"bfloat16": (4992, 256), "float16": (5000, 2048)}[dtype]
    for name, value in found.items():
        print(f"{library}, {dtype}, {name}: {value:g}")
        assert value == (stop if name in stops else whole), f"CHANGED: {library}, {name}"


def of_torch(dtype):
    ids = torch.zeros(COUNT, dtype=torch.long)
    rows = torch.ones(COUNT, 4, dtype=dtype)
    wide = ids[:, None].expand(COUNT, 4)

    def gradient(look_up):
        table = torch.zeros(10, 4, dtype=dtype, requires_grad=True)
        look_up(table).backward(rows)
        return table.grad[0, 0].item()

    zeros = lambda: torch.zeros(10, 4, dtype=dtype)
    return {
        "embedding": gradient(lambda table: f.embedding(ids, table)),
        "embedding_bag": gradient(lambda table: f.embedding_bag(ids[:, None], table, mode="sum")),
        "table[ids]": gradient(lambda table: table[ids]),
        "index_put_": zeros().index_put_((ids,), rows, accumulate=True)[0, 0].item(),
        "index_select": gradient(lambda table: table.index_select(0, ids)),
        "gather": gradient(lambda table: table.gather(0, wide)),
        "index_add_": zeros().index_add_(0, ids, rows)[0, 0].item(),
        "scatter_add_": zeros().scatter_add_(0, wide, rows)[0, 0].item(),
    }


def of_jax(dtype):
    ids = jnp.zeros(COUNT, int)
    rows = jnp.ones((COUNT, 4), dtype)
    table = jnp.zeros((10, 4), dtype)
    gradient = lambda loss: jax.grad(loss)(table)[0, 0].item()
    scanned = lambda w: jax.lax.scan(lambda carry, row: (carry, w * row), 0, rows)[1].sum()
    mapped = lambda w: jax.vmap(lambda row: w * row)(rows).sum()
    return {
        "table[ids]": gradient(lambda t: t[ids].sum()),
        "table[ids], jit": jax.jit(jax.grad(lambda t: t[ids].sum()))(table)[0, 0].item(),
        "table[ids], loss in float32": gradient(lambda t: t[ids].astype(jnp.float32).sum()),
        "take": gradient(lambda t: jnp.take(t, ids, axis=0).sum()),
        ".at[].add": table.at[ids].add(rows)[0, 0].item(),
        "segment_sum": jax.ops.segment_sum(rows, ids, 10)[0, 0].item(),
        "bincount": jnp.bincount(ids, weights=rows[:, 0], length=10)[0].item(),
        "scan": jax.grad(scanned)(jnp.ones(4, dtype))[0].item(),
        "one_hot": gradient(lambda t: (jax.nn.one_hot(ids, 10, dtype=dtype) @ t).sum()),
        "vmap": jax.grad(mapped)(jnp.ones(4, dtype))[0].item(),
    }


def of_mlx(dtype):
    ids = mx.zeros(COUNT, mx.int32)
    table = mx.zeros((10, 4), dtype=dtype)
    return {
        "table[ids]": mx.grad(lambda t: t[ids].sum())(table)[0, 0].item(),
        "take": mx.grad(lambda t: mx.take(t, ids, axis=0).sum())(table)[0, 0].item(),
        ".at[].add": table.at[ids].add(mx.ones((COUNT, 4), dtype=dtype))[0, 0].item(),
    }


for name in ("bfloat16", "float16"):
    told("torch", name, of_torch(getattr(torch, name)), ("embedding", "embedding_bag", "table[ids]", "index_put_"))
    found = of_jax(getattr(jnp, name))
    told("jax", name, found, [way for way in found if way not in ("one_hot", "vmap")])
    found = of_mlx(getattr(mx, name))
    told("mlx", name, found, list(found))
mean = torch.segment_reduce(torch.ones(20_000, dtype=torch.bfloat16), "mean", lengths=torch.tensor([20_000])).item()
print(f"torch.segment_reduce, mean of 20,000 bfloat16 ones: {mean:.4f}")
assert mean < 0.02, "CHANGED"
PY
venv/bin/python rows.py 2>err.log || { cat err.log; exit 1; }
