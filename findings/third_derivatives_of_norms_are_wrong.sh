#!/usr/bin/env bash
# torch 2.13.0+cpu: third derivatives through layer_norm and batch_norm are wrong, without a word.
#
# Guess: what can be differentiated twice, and the gradient of that again, is right each time, or raises "not differentiable".
# Seen in float64, of F(x) = mean(h^2), where h is the gradient of sum(g^3) by x, and g that of sum((x sin(norm(x)))^2):
# 1. First and second derivatives agree with differences: torch's gradcheck and gradgradcheck pass for both.
# 2. The gradient of F through layer_norm and batch_norm is off by more than a hundredth of its largest element. The formula of the
#    second derivative takes the mean and the deviation that forward has kept, and these have no history.
# 3. The same norms written with mean() and sqrt(), group_norm and rms_norm give the gradient of differences.
# So a penalty of a Hessian-vector product, or an inner step in an inner step, trains a network with such layers to something else.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >third.py <<'PY'
import torch
from torch.nn import functional

print("torch", torch.__version__)
torch.set_default_dtype(torch.double)
torch.manual_seed(0)
x0 = torch.randn(5, 4)


def by_hand(x, dim):
    centered = x - x.mean(dim, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(dim, keepdim=True) + 1e-5)


norms = {
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "rms_norm": lambda x: functional.rms_norm(x, (4,)),
    "layer_norm by hand": lambda x: by_hand(x, 1),
    "batch_norm by hand": lambda x: by_hand(x, 0),
}


def second(norm, x, create_graph):
    """F(x), which uses first and second derivatives alone."""
    y = norm(x).sin() * x
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(3).sum(), x, create_graph=create_graph)
    return h.square().mean()


def differences(norm, step=1e-5):
    result = torch.zeros(20)
    for i in range(20):
        shift = torch.zeros(20)
        shift[i] = step
        more, less = (second(norm, (x0 + s * shift.view(5, 4)).requires_grad_(), False).item() for s in (1, -1))
        result[i] = (more - less) / (2 * step)
    return result.view(5, 4)


def off(norm):
    x = x0.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(second(norm, x, True), x)
    expected = differences(norm)
    return ((gradient - expected).abs().max() / expected.abs().max()).item()


for name, norm in norms.items():
    x = x0.clone().requires_grad_()
    assert torch.autograd.gradcheck(norm, x) and torch.autograd.gradgradcheck(norm, x), f"CHANGED: {name}"
    wrong = off(norm)
    print(f"{name}: third derivatives are off by {wrong:.1e} of the largest")
    if name in ("layer_norm", "batch_norm"):
        assert wrong > 1e-2, f"CHANGED: {name} is right"
    else:
        assert wrong < 1e-5, f"CHANGED: {name} is wrong"
PY
venv/bin/python third.py
