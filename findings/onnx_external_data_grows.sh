#!/usr/bin/env bash
# onnx 1.23.2: saving a model with external data again does not replace the data, it appends to them.
#
# Guess: onnx.save_model() to a path where a model lies replaces the model and its data file, as it does the .onnx file. Seen:
# 1. Each save of a model of 400,000 bytes of weights makes the data file 400,000 bytes longer; the new .onnx points behind the old data. So
#    a job that saves every thousand steps fills the disk, and nothing in the folder shows which part counts.
# 2. The file that is loaded is right: only the offset in the .onnx tells. An older .onnx kept beside it is still whole as well.
# 3. With a file for each tensor it is the same. And the save empties the model in memory: its weights are a reference to the file, so
#    to_array() of them raises afterwards.
#
# Fails if it changes. Takes less than a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "onnx==1.23.2" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >grows.py <<'PY'
import os
import shutil

import numpy
import onnx
from onnx import helper, numpy_helper

print("onnx", onnx.__version__)


def model(value):
    weight = numpy_helper.from_array(numpy.full((1000, 100), value, numpy.float32), "weight")
    ends = [helper.make_tensor_value_info("x", 1, [1, 1000])], [helper.make_tensor_value_info("y", 1, [1, 100])]
    return helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "graph", *ends, [weight]))


def value(path):
    return float(numpy_helper.to_array(onnx.load(path).graph.initializer[0])[0, 0])


for one_file in (True, False):
    folder = f"models-{one_file}"
    os.mkdir(folder)
    sizes = []
    for step in range(3):
        saved = model(step)
        settings = {"all_tensors_to_one_file": True, "location": "weights.data"} if one_file else {"all_tensors_to_one_file": False}
        onnx.save_model(saved, f"{folder}/model.onnx", save_as_external_data=True, size_threshold=0, **settings)
        sizes.append(os.path.getsize(f"{folder}/{'weights.data' if one_file else 'weight'}"))
        if step == 0:
            shutil.copy(f"{folder}/model.onnx", f"{folder}/first.onnx")
    print(f"all in one file {one_file}: bytes of the data after each save {sizes}; loaded {value(folder + '/model.onnx')}, with the first",
          f".onnx {value(folder + '/first.onnx')}")
    assert sizes == [400000, 800000, 1200000], "CHANGED: the file is replaced"
    assert value(f"{folder}/model.onnx") == 2 and value(f"{folder}/first.onnx") == 0, "CHANGED"
try:
    numpy_helper.to_array(saved.graph.initializer[0])
    raise SystemExit("CHANGED: the model in memory keeps its weights")
except SystemExit:
    raise
except Exception as error:
    print("the model in memory afterwards:", type(error).__name__, str(error)[:80])
PY
venv/bin/python grows.py
