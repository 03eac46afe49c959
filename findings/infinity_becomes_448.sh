#!/usr/bin/env bash
# torch 2.13.0+cpu, ml_dtypes 0.6.0, onnx 1.23.2: what becomes of infinity in 8 bits.
#
# float8_e4m3fn has no infinity. Guess: a conversion of infinity, or of a number that is too large, gives NaN, its one mark of trouble,
# as ml_dtypes (JAX, NumPy) does and torch's other types without infinity do. Seen:
# 1. In torch infinity becomes 448, the largest number, and so do 1000 and 1e30, without a word, from float64 down to float16, by to(),
#    fill_() and torch.tensor() alike. NaN stays NaN.
# 2. Its siblings differ: float8_e4m3fnuz and float8_e5m2fnuz give NaN, float8_e5m2 infinity.
# 3. ml_dtypes gives NaN for 1000, infinity and all that is too large in the same type, so the same cast of the same array differs between the two libraries.
# 4. ONNX's Cast saturates both types: float8_e4m3fn agrees with torch, float8_e5m2 gives 57344 where torch gives infinity.
# So what overflowed is no longer seen behind the cast: look for infinities before it.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" "ml_dtypes==0.6.0" "onnx==1.23.2" 2>pip.log || { cat pip.log; exit 1; }

cat >infinity.py <<'PY'
import ml_dtypes
import numpy
import onnx
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

print("torch", torch.__version__, "ml_dtypes", ml_dtypes.__version__, "onnx", onnx.__version__)
values = [448.0, 1000.0, 60000.0, float("inf"), float("-inf"), float("nan")]


def text(numbers):
    return " ".join(str(number) for number in numbers)


for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    for source in (torch.float64, torch.float32, torch.float16):
        given = torch.tensor(values, dtype=source)
        torchs = text(given.to(getattr(torch, name)).float().tolist())
        assert torchs == text(given.repeat(50).to(getattr(torch, name)).float().tolist()[:6])
        if name == "float8_e4m3fn":
            assert torchs == "448.0 448.0 448.0 448.0 -448.0 nan", "CHANGED: it does not saturate"
    with numpy.errstate(all="ignore"):
        others = text(numpy.array(values, numpy.float32).astype(getattr(ml_dtypes, name)).astype(numpy.float32).tolist())
    print(f"{name}: {text(values)} -> torch {torchs}; ml_dtypes {others}")
    if name == "float8_e4m3fn":
        assert others == "448.0 nan nan nan nan nan", "CHANGED: ml_dtypes saturates"
assert torch.zeros(1, dtype=torch.float8_e4m3fn).fill_(float("inf")).float().item() == 448, "CHANGED"
assert torch.tensor([float("inf")], dtype=torch.float8_e4m3fn).float().item() == 448, "CHANGED"
assert torch.tensor([float("inf")]).to(torch.float8_e4m3fnuz).float().isnan().all(), "CHANGED"

for kind in ("FLOAT8E4M3FN", "FLOAT8E5M2"):
    nodes = [helper.make_node("Cast", ["x"], ["small"], to=getattr(TensorProto, kind)), helper.make_node("Cast", ["small"], ["y"], to=1)]
    ends = [[helper.make_tensor_value_info(end, TensorProto.FLOAT, [6])] for end in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "cast", *ends), opset_imports=[helper.make_opsetid("", 21)])
    found = text(ReferenceEvaluator(model).run(None, {"x": numpy.array(values, numpy.float32)})[0].tolist())
    print(f"onnx {kind}: {found}")
    largest = "448.0" if kind == "FLOAT8E4M3FN" else "57344.0"
    assert found.split()[3:] == [largest, "-" + largest, "nan"], "CHANGED"
PY
venv/bin/python infinity.py 2>err.log || { cat err.log; exit 1; }
