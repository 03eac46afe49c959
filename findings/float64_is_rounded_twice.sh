#!/usr/bin/env bash
# torch 2.13.0+cpu, ml_dtypes 0.6.0, numpy 2.4.6: float64 becomes 16 or 8 bits through float32, so it is not rounded to the nearest.
#
# A reference is computed in float64 and rounded to the type under test; a file of float64 is loaded into a model of 16 bits. Guess: a conversion
# gives the nearest number of the type. Seen:
# 1. torch's to(float16), to(bfloat16) and to(float8_e4m3fn) of 1 + half a step + 2**-40, which is above the middle, are 1: float32 has lost the
#    2**-40, and what is left is a tie. tensor(), full(), fill_() and copy_() do the same. So does ml_dtypes' astype() to bfloat16 and e4m3.
# 2. NumPy's own float64 to float16 is right, and its longdouble to float16 is not.
# 3. Of ten million uniform numbers 591 are torch's other neighbour in float16, 80 in bfloat16: one of 17,000 and of 125,000. Comparisons "to the
#    bit" of a rounded reference fail there, and none does in a short test.
# Right: numpy's astype(float16) of float64.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "ml_dtypes==0.6.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import ml_dtypes
import numpy as np
import torch

print("torch", torch.__version__, "ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__)
types = {"float16": (torch.float16, np.float16, 10), "bfloat16": (torch.bfloat16, ml_dtypes.bfloat16, 7), "float8_e4m3fn": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 3)}
for name, (of_torch, of_numpy, bits) in types.items():
    above = 1 + 2.0 ** -(bits + 1) + 2.0**-40
    nearest = 1 + 2.0**-bits
    values = torch.full((64,), above, dtype=torch.float64)
    converted = values.to(of_torch).to(torch.float64)
    array = values.numpy().astype(of_numpy).astype(np.float64)
    print(f"{name}: torch {converted[0].item()}, numpy or ml_dtypes {array[0]}, nearest {nearest}")
    assert (converted == 1).all() and (array == (nearest if name == "float16" else 1)).all(), "CHANGED"
above = 1 + 2.0**-11 + 2.0**-40
others = [torch.tensor(above, dtype=torch.float16), torch.full((1,), above, dtype=torch.float16), torch.zeros(1, dtype=torch.float16).fill_(above),
          torch.zeros(1, dtype=torch.float16).copy_(torch.tensor([above], dtype=torch.float64))]
print("tensor(), full(), fill_(), copy_():", [other.item() for other in others], "longdouble:", np.longdouble(above).astype(np.float16))
assert all(other.item() == 1 for other in others) and np.longdouble(above).astype(np.float16) == 1, "CHANGED"
uniform = np.random.default_rng(1).random(10_000_000)
differ = int((torch.from_numpy(uniform).half().numpy() != uniform.astype(np.float16)).sum())
fractions, exponents = np.frexp(uniform)
nearest = np.ldexp(np.rint(fractions * 256), exponents - 8)  # 8 bits, ties to even
of_bfloat16 = int((torch.from_numpy(uniform).bfloat16().double().numpy() != nearest).sum())
print("of ten million:", differ, of_bfloat16)
assert differ == 591 and of_bfloat16 == 80, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
