#!/usr/bin/env bash
# torchao 0.18.0, gguf 0.19.0, torch 2.13.0+cpu: two quantizations to 8 bits of which neither holds its own largest weight.
#
# Both keep signed bytes and a scale (a row in torchao, 32 numbers in GGUF's Q8_0), "absmax to 127". Guess: the largest weight comes back as
# it was, a second round changes nothing, and the error relative to the weights does not depend on their size. Seen:
# 1. torchao's Int8WeightOnlyConfig: weights of -1, 0, 1 come back as -0.996, 0, 0.996, since the scale is the maximum over 127.5. Every
#    further round changes them again: 0.992, 0.996, 1.000, 1.004, ... 1.012 within ten.
# 2. Q8_0 of gguf-py brings them back as 0.99994, since the scale is kept in float16; a second round changes nothing.
# 3. As that scale is a float16, small weights drown in Q8_0: the error, relative to the weights, is 0.5 % for weights of 1, 1 % at 1e-4, 9 %
#    at 1e-5, and at 1e-6 nearly all of them are 0. With torchao it is 0.8 % down to 1e-5, and 3 % at 1e-6.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "torchao==0.18.0" "gguf==0.19.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >bytes.py <<'PY'
import importlib.metadata

import gguf
import torch
import torchao
from torchao.quantization import Int8WeightOnlyConfig, quantize_

print("torch", torch.__version__, "torchao", torchao.__version__, "gguf", importlib.metadata.version("gguf"))
Q8 = gguf.GGMLQuantizationType.Q8_0


def in_torchao(weights):
    layer = torch.nn.Linear(*weights.shape[::-1], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weights)
    quantize_(layer, Int8WeightOnlyConfig())
    return layer.weight.dequantize().detach()


def in_q8(weights):
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weights.numpy(), Q8), Q8))


torch.manual_seed(0)
ternary = torch.randint(-1, 2, (64, 128)).float()
largest = {}
for way in (in_torchao, in_q8):
    weights, maxima = ternary, []
    for _ in range(10):
        weights = way(weights)
        maxima.append(round(weights.max().item(), 5))
    largest[way] = maxima
    print(f"{way.__name__}: 1 becomes, round by round, {maxima}")
assert largest[in_torchao][0] < 0.997 and len(set(largest[in_torchao])) > 5, "CHANGED: the largest weight is kept"
assert largest[in_q8][0] == largest[in_q8][-1] == 0.99994, "CHANGED"

weights, errors = torch.randn(64, 1024), {}
for way in (in_torchao, in_q8):
    errors[way] = [((way(weights * size) - weights * size).norm() / (weights * size).norm()).item() for size in (1, 1e-4, 1e-5, 1e-6)]
    print(f"{way.__name__}: relative error for weights of 1, 1e-4, 1e-5, 1e-6:", [f"{error:.4f}" for error in errors[way]])
assert max(errors[in_torchao][:3]) < 0.009 and errors[in_torchao][3] < 0.1, "CHANGED"
assert errors[in_q8][0] < 0.007 and errors[in_q8][2] > 0.05 and errors[in_q8][3] > 0.9, "CHANGED: small weights are kept"
PY
venv/bin/python bytes.py 2>err.log || { cat err.log; exit 1; }
