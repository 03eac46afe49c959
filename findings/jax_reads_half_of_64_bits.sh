#!/usr/bin/env bash
# safetensors 0.8.0, orbax-checkpoint 0.12.8, jax 0.10.2, numpy 2.4.6: JAX reads 64-bit numbers of a file as their lower 32 bits.
#
# A checkpoint holds counts as int64: tokens seen, the place in the data. JAX has 32 bits unless told otherwise. Guess: reading what does not fit
# raises, or warns, as jnp.asarray(3000000000) of a Python integer raises OverflowError. Seen, without a word:
# 1. safetensors.flax.load_file() gives 3,000,000,000 tokens as -1294967296 (int32), uint64 2**63 + 5 as 5, and a float64 time as float32, 64
#    seconds coarse at best. safetensors.numpy gives what was written.
# 2. Orbax, saved from NumPy and restored into a jax array as target, gives -1294967296 too, where the target is int32, which is what
#    jnp.zeros(1, int) makes. Restored into NumPy, or without a target, it is 3,000,000,000.
# 3. Saved again by safetensors.flax the file holds -1294967296 for good.
# JAX_ENABLE_X64=1 keeps all bits; or read counts by safetensors.numpy.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "safetensors==0.8.0" "orbax-checkpoint==0.12.8" "flax==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.flax
import safetensors.numpy

warnings.simplefilter("error", UserWarning)
print("safetensors", safetensors.__version__, "orbax-checkpoint", ocp.__version__, "jax", jax.__version__, "numpy", np.__version__)
state = {"tokens": np.array([3_000_000_000]), "hash": np.array([2**63 + 5], np.uint64), "time": np.array([1.7e9 + 33.25])}
safetensors.numpy.save_file(state, "state.safetensors")
whole = safetensors.numpy.load_file("state.safetensors")
assert all((whole[name] == state[name]).all() and whole[name].dtype == state[name].dtype for name in state)
read = safetensors.flax.load_file("state.safetensors")
print("safetensors.flax:", {name: (value[0].item(), str(value.dtype)) for name, value in read.items()})
assert read["tokens"].tolist() == [-1294967296] and read["hash"].tolist() == [5] and read["time"].dtype == jnp.float32, "CHANGED"
safetensors.flax.save_file(read, "again.safetensors")
again = safetensors.numpy.load_file("again.safetensors")
print("saved again:", again["tokens"], again["tokens"].dtype)
assert again["tokens"].tolist() == [-1294967296], "CHANGED"
try:
    jnp.asarray(3_000_000_000)
    raise SystemExit("CHANGED: a Python integer fits")
except OverflowError as error:
    print("a Python integer:", type(error).__name__)

folder = os.path.abspath("orbax")
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, {"tokens": state["tokens"]})
    checkpointer.wait_until_finished()
    into_jax = checkpointer.restore(folder, {"tokens": jnp.zeros(1, jnp.int32)})["tokens"]
    into_numpy = checkpointer.restore(folder, {"tokens": np.zeros(1, np.int64)})["tokens"]
whole = "import safetensors.flax as f; print(f.load_file('state.safetensors')['tokens'].tolist())"
enabled = subprocess.run([sys.executable, "-c", whole], env={**os.environ, "JAX_ENABLE_X64": "1"}, capture_output=True, text=True, check=True)
print("with JAX_ENABLE_X64:", enabled.stdout.strip())
assert enabled.stdout.strip() == "[3000000000]", "CHANGED"
print("orbax into jax:", into_jax, "into numpy:", into_numpy)
assert into_jax.tolist() == [-1294967296] and into_numpy.tolist() == [3_000_000_000], "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
