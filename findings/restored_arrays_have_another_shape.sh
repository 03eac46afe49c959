#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, flax 0.12.8, jax 0.10.2, numpy 2.4.6: what is restored into NumPy arrays is not held to their shapes.
#
# A checkpoint is restored into a target: a tree of arrays, or of shapes, of the model as it is now. Guess: an array of another shape is refused, as
# Orbax refuses it for targets of jax ("Requested shape: (2, 4) is not compatible with the stored shape: (3, 4)"). Seen, nothing said:
# 1. Orbax, target of NumPy: the array that is stored comes back whole, [3, 4] for a target of [2, 4], [4, 4], [4, 3], [12] or [3, 4, 1]. So do
#    StandardCheckpointer, CheckpointManager and PyTreeCheckpointer with restore_args. The target's dtype is applied: 1000 is -24 in int8.
# 2. flax.serialization.from_bytes() and from_state_dict() check names, and neither shapes nor dtypes, for targets of jax as well: a bias of
#    [4] becomes one of [1], or a number, of float64, which broadcasts, so the model goes on and has no error to show.
# 3. With names or numbers of layers that differ flax raises.
# So compare shapes, jax.tree.map(np.shape, ...), after a restore from a model of another size, vocabulary or number of ranks.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "orbax-checkpoint==0.12.8" "flax==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log ||
    { cat pip.log; exit 1; }

cat >shapes.py <<'PY'
import os

os.environ["JAX_PLATFORMS"] = "cpu"
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("orbax-checkpoint", "flax", "jax", "numpy")))
stored = np.arange(12, dtype=np.float32).reshape(3, 4) * 1000 / 11
stored[0, 1] = 1000
folder = os.getcwd()
checkpointer = ocp.StandardCheckpointer()
checkpointer.save(f"{folder}/one", {"w": jnp.asarray(stored)})
checkpointer.wait_until_finished()
manager = ocp.CheckpointManager(f"{folder}/many")
manager.save(1, args=ocp.args.StandardSave({"w": jnp.asarray(stored)}))
manager.wait_until_finished()
by_args = lambda tree: ocp.PyTreeCheckpointer().restore(f"{folder}/one", item=tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree))
ways = {
    "StandardCheckpointer": lambda tree: checkpointer.restore(f"{folder}/one", tree),
    "CheckpointManager": lambda tree: manager.restore(1, args=ocp.args.StandardRestore(tree)),
    "PyTreeCheckpointer": by_args,
}
for name, restore in ways.items():
    for shape in ((2, 4), (4, 4), (4, 3), (12,), (3, 4, 1)):
        read = restore({"w": np.zeros(shape, np.float32)})["w"]
        print(f"{name}: {shape} wanted, {read.shape} restored")
        assert isinstance(read, np.ndarray) and np.array_equal(read, stored), f"CHANGED: {name}"
    try:
        restore({"w": jnp.zeros((2, 4))})
        raise SystemExit("CHANGED: a jax target of another shape is taken")
    except ValueError as error:
        assert "not compatible with the stored shape" in str(error), "CHANGED"
narrow = ways["StandardCheckpointer"]({"w": np.zeros((3, 4), np.int8)})["w"]
print(f"1000 into int8: {narrow[0, 1]}")
assert narrow.dtype == np.int8 and narrow[0, 1] == -24, "CHANGED"
manager.close()

for kind, target in (("NumPy", np.zeros(4, np.float32)), ("jax", jnp.zeros(4))):
    for other in (np.ones(1), np.ones((4, 4)), np.float64(7), np.ones(4, np.int8)):
        tree = {"bias": other}
        for way, read in (("from_bytes", serialization.from_bytes({"bias": target}, serialization.to_bytes(tree))),
                          ("from_state_dict", serialization.from_state_dict({"bias": target}, serialization.to_state_dict(tree)))):
            read = read["bias"]
            print(f"flax {way}, {kind}: (4,) of float32 wanted, {np.shape(read)} of {read.dtype} restored")
            assert np.shape(read) == np.shape(other) and read.dtype == other.dtype, f"CHANGED: {way}"
try:
    serialization.from_bytes({"bias": np.zeros(4)}, serialization.to_bytes({"scale": np.zeros(4)}))
    raise SystemExit("CHANGED: flax takes other names")
except ValueError as error:
    print("other names:", str(error).splitlines()[0][:100])
PY
venv/bin/python shapes.py 2>err.log || { cat err.log; exit 1; }
