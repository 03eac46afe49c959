#!/usr/bin/env bash
# torch 2.13.0+cpu: torch.sqrt of a tensor on the CPU is not always the nearest number, though the processor's instruction is.
#
# IEEE 754 demands of a square root that it is rounded correctly, as the processor's instruction and NumPy do it. Guess: so does
# torch.sqrt, and an optimizer that divides by a root has the same bits wherever it runs. Seen (wheel with MKL, x86-64):
# 1. Of the roots of 100,000 numbers k/7 in float64 about 0.7 to 1.4 % are one unit in the last place off; which ones depends on
#    the instructions that MKL's vector library chooses (AVX-512 here, AVX2 when it is told so): two machines differ.
# 2. In float32 0.7 % are off with AVX-512, and none with AVX2.
# 3. x ** 0.5 is the same function. Roots of perfect squares are exact, so small checks see nothing.
# One step of AdamW(foreach=False) differs from one of AdamW(fused=True) in some parameters, for which this is one reason.
#
# Fails if float64 roots are all the nearest. Takes about two minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check "torch==2.13.0" "numpy==2.3.4" 2>pip.log || { cat pip.log; exit 1; }

cat >roots.py <<'PY'
import sys

import numpy
import torch

torch.set_num_threads(1)
off = {}
for dtype in (torch.float32, torch.float64):
    numbers = torch.arange(1, 100001, dtype=dtype) / 7
    nearest = torch.from_numpy(numpy.sqrt(numbers.numpy()))
    roots = torch.sqrt(numbers)
    unit = torch.from_numpy(numpy.spacing(nearest.numpy()))
    squares = torch.arange(1, 4000, dtype=dtype)
    off[dtype] = int((roots != nearest).sum())
    print(f"{dtype}: {off[dtype]} of 100000 roots are not the nearest, by at most {((roots - nearest).abs() / unit).max():.0f} unit;",
          f"x ** 0.5: {int((numbers**0.5 != nearest).sum())}; of perfect squares: {int((torch.sqrt(squares**2) != squares).sum())}")

steps = []
for fused in (False, True):
    torch.manual_seed(0)
    weight = torch.randn(100000, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.randn(100000, dtype=torch.float64)
    torch.optim.AdamW([weight], lr=0.1, foreach=False, fused=fused).step()
    steps.append(weight.detach())
print(f"one step of AdamW: {int((steps[0] != steps[1]).sum())} of 100000 parameters differ between fused and not")
sys.exit(off[torch.float64] == 0)
PY

venv/bin/python -c 'import torch; print("torch", torch.__version__, "on", torch.backends.cpu.get_cpu_capability())'
venv/bin/python roots.py
echo "with MKL_ENABLE_INSTRUCTIONS=AVX2:"
MKL_ENABLE_INSTRUCTIONS=AVX2 venv/bin/python roots.py
