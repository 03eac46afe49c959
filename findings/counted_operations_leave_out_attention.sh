#!/usr/bin/env bash
# torch 2.13.0+cpu: FlopCounterMode counts 0 for attention, LSTM and Bilinear on a CPU, and ten times the work of a grouped convolution's step.
#
# with FlopCounterMode() as counter: a step; counter.get_total_flops(), by which devices are chosen and their utilisation is told. Guess: products of
# matrices are counted wherever they are, as they are for "meta" or for a GPU; a backward is twice its forward; what is not known is said. Seen:
# 1. scaled_dot_product_attention counts 0, forward and backward, causal or not; the same written as softmax(q @ k.T) @ v counts 4,194,304 and three
#    times that. So a Transformer of long sequences on a CPU is its linear layers alone.
# 2. nn.LSTM counts 0, nn.GRU and nn.RNN do count. nn.Bilinear, a matrix times a vector (mv, addmv) and dot count 0. A TransformerEncoderLayer counts
#    in train() and 0 in eval() under no_grad(), where one kernel computes it.
# 3. A convolution of 8 groups: the forward is right, an eighth; forward and backward are 10 times the forward for 3: the gradient of the
#    weights is counted as if there were no groups. Of 2 groups it is 4, of one 3; transposed ones are alike. A depthwise one of 256 channels is 258.
# 4. On the meta device attention is counted, so the same model has two numbers.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >count.py <<'PY'
import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.flop_counter import FlopCounterMode

print("torch", torch.__version__)
torch.manual_seed(0)


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def both(module, x):
    """Operations of a forward, and of a forward with its backward."""
    x = x.clone().requires_grad_()

    def step():
        out = module(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return counted(lambda: module(x)), counted(step)


def shown(name, found, expected):
    print(f"{name}: forward {found[0]}, with its backward {found[1]}")
    assert found == expected, f"CHANGED: {name}"


heads = torch.randn(2, 4, 64, 32)
product = 2 * 2 * 4 * 64 * 64 * 32
by_hand = lambda q: (q @ q.transpose(-1, -2)).softmax(-1) @ q
shown("attention by hand", both(by_hand, heads), (2 * product, 6 * product))
for causal in (False, True):
    shown(f"scaled_dot_product_attention, causal {causal}", both(lambda q: f.scaled_dot_product_attention(q, q, q, is_causal=causal), heads), (0, 0))
meta = counted(lambda: f.scaled_dot_product_attention(*[heads.to("meta")] * 3))
print("scaled_dot_product_attention on the meta device:", meta)
assert meta == 2 * product, "CHANGED"

rows = torch.randn(10, 2, 16)
shown("LSTM", both(nn.LSTM(16, 16), rows), (0, 0))
for kind in (nn.GRU, nn.RNN):
    found = both(kind(16, 16), rows)
    print(f"{kind.__name__}: forward {found[0]}, with its backward {found[1]}")
    assert found[0] >= 2 * 10 * 2 * 16 * 16 * 2, "CHANGED"
shown("Bilinear", both(lambda x: nn.Bilinear(16, 16, 4)(x, x), rows), (0, 0))
for name, run in (("mv", lambda: torch.mv(torch.ones(16, 16), torch.ones(16))), ("dot", lambda: torch.dot(torch.ones(16), torch.ones(16)))):
    print(f"{name}: {counted(run)}")
    assert counted(run) == 0, f"CHANGED: {name}"
layer, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 10, 16)
trained = counted(lambda: layer.train()(x))
with torch.no_grad():
    evaluated = counted(lambda: layer.eval()(x))
print(f"TransformerEncoderLayer: {trained} in train(), {evaluated} in eval() under no_grad()")
assert trained > 80_000 and evaluated == 0, "CHANGED"

for channels, groups in ((8, 1), (8, 2), (8, 8), (256, 256)):
    image = torch.randn(2, channels, 16, 16)
    true = 2 * 2 * channels * (channels // groups) * 9 * 256
    for kind in (nn.Conv2d, nn.ConvTranspose2d):
        found = both(kind(channels, channels, 3, padding=1, groups=groups), image)
        print(f"{kind.__name__} of {channels} channels in {groups} groups: forward {found[0]} of {true}, with its backward {found[1] / true:g} times that")
        assert found == (true, (2 + groups) * true), "CHANGED"
PY
venv/bin/python count.py 2>err.log || { cat err.log; exit 1; }
