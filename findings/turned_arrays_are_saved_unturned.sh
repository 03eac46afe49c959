#!/usr/bin/env bash
# safetensors 0.8.0, numpy 2.4.6: save_file() writes a transposed array in the order of memory, under the transposed shape.
#
# Weights of JAX, Keras or GPT-2 are [inputs, outputs], PyTorch's [outputs, inputs], so a converter saves {name: weight.T} by safetensors.numpy.
# Guess: the file holds the array that NumPy shows, as 0.7.0 wrote it, or an error says that it is not contiguous, as safetensors.torch
# raises it. Seen of save() and save_file():
# 1. [[0, 1, 2], [3, 4, 5]].T comes back as [[0, 1], [2, 3], [4, 5]] for [[0, 3], [1, 4], [2, 5]]: the right shape, other weights, nothing said. The
#    docstring asks for contiguous arrays; nothing checks it.
# 2. So does what np.asfortranarray(), moveaxis(), split(axis=1) and steps (rows[::2], columns[:, :2]) return: a third of a fused query,
#    key, value matrix that was split by columns has elements of its neighbours.
# 3. Rows cut off the front or the back are right, and so is all that went through np.ascontiguousarray(). 0.7.0 writes all of them rightly.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >check.py <<'PY'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load, load_file, save, save_file

print("safetensors", safetensors.__version__, "numpy", np.__version__)
weight = np.arange(48, dtype=np.float32).reshape(8, 6)
views = {
    "transposed": weight[:4].T,
    "of Fortran": np.asfortranarray(weight[:4]),
    "axis moved": np.moveaxis(weight[:4].reshape(2, 2, 6), 0, 2),
    "split by columns": np.split(weight[:4], 3, axis=1)[1],
    "every other row": weight[:6:2],
    "rows": weight[2:5],
    "made contiguous": np.ascontiguousarray(weight[:4].T),
}
small = load(save({"a": np.arange(6).reshape(2, 3).T}))["a"]
print("[[0, 1, 2], [3, 4, 5]].T comes back as", small.tolist())
older = sys.argv[1] == "older"
assert small.tolist() == ([[0, 3], [1, 4], [2, 5]] if older else [[0, 1], [2, 3], [4, 5]]), "CHANGED"
for name, view in views.items():
    save_file({name: view}, "file.safetensors")
    read = load_file("file.safetensors")[name]
    kept = np.array_equal(read, view)
    print(f"{name}: {'kept' if kept else 'other values'}, shape {read.shape} of {view.shape}")
    assert read.shape == view.shape and np.array_equal(load(save({name: view}))[name], read), "CHANGED"
    assert kept == (older or name in ("rows", "made contiguous")), f"CHANGED: {name}"
PY
for version in 0.8.0 0.7.0; do
    python3 -m venv "venv$version"
    "venv$version/bin/pip" install -q --no-compile --disable-pip-version-check "safetensors==$version" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }
    "venv$version/bin/python" check.py "$([ "$version" = 0.8.0 ] && echo newer || echo older)" 2>err.log || { cat err.log; exit 1; }
done
