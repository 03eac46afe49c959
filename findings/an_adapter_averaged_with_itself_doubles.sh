#!/usr/bin/env bash
# peft 0.21.2, transformers 5.24.0, torch 2.13.0+cpu: the "linear" average of two equal adapters is twice the adapter, of four four times.
#
# model.add_weighted_adapter(names, weights, "mean", combination_type="linear") makes one LoRA adapter of several: those of ranks or runs. Guess:
# its change of the weight is the weighted sum of their changes, up to the rank. Seen, adapters of rank 4, the change of a matrix:
# 1. The same adapter n times with weights 1/n: n times its change. Factors are summed with the roots of the weights, so the product has all
#    mixed terms too: (A1 + A2)(B1 + B2) / 2.
# 2. Two adapters that were trained apart, weights 0.5: the change is as far from their mean as the mean is long, and longer than it.
# 3. "cat" and "svd" give the weighted sum to 6 digits, of rank 8 or a rank of one's own. Nothing warns of the other.
#
# Fails if it changes. Takes one to five minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "peft==0.21.2" "transformers==5.24.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import peft
import torch
from peft import LoraConfig, get_peft_model

print("peft", peft.__version__, "torch", torch.__version__)
torch.manual_seed(0)
settings = LoraConfig(r=4, lora_alpha=8, target_modules=["0"])
model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False)), settings, adapter_name="first")
layer = model.base_model.model[0]
for name in "second", "equal":
    model.add_adapter(name, settings)
for name in "first", "second":
    torch.nn.init.normal_(layer.lora_B[name].weight)
with torch.no_grad():
    layer.lora_A["equal"].weight.copy_(layer.lora_A["first"].weight)
    layer.lora_B["equal"].weight.copy_(layer.lora_B["first"].weight)
made = 0


def change(name):
    return layer.get_delta_weight(name).detach()


def combined(names, weights, kind):
    """How far the combined change is from the sum of changes, and how long both are."""
    global made
    made += 1
    options = {"svd_rank": 8} if kind == "svd" else {}
    model.add_weighted_adapter(names, weights, f"made{made}", combination_type=kind, **options)
    right, seen = sum(weight * change(name) for name, weight in zip(names, weights)), change(f"made{made}")
    return (seen - right).norm().item(), seen.norm().item(), right.norm().item()


for count in 2, 4:
    _, seen, right = combined((["first", "equal"] * 2)[:count], [1 / count] * count, "linear")
    print(f"{count} equal adapters, linear, weights 1/{count}: {seen / right:.4f} times one of them")
    assert abs(seen / right - count) < 1e-3, "CHANGED"
for weights in [0.5, 0.5], [0.7, 0.3]:
    for kind in "linear", "cat", "svd":
        far, seen, right = combined(["first", "second"], weights, kind)
        print(f"two adapters, {kind}, weights {weights}: off by {far / right:.2g} of the sum's length, {seen / right:.3f} times as long")
        assert (0.8 < far / right < 1.3 and seen > right) if kind == "linear" else far / right < 1e-5, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
