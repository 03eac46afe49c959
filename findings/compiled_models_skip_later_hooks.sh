#!/usr/bin/env bash
# torch 2.13.0+cpu: hooks that are registered on a compiled model after its first call are never called.
#
# torch.compile watches what a model depends on, and compiles anew if it changed: a Dropout's p, a counter, train() and eval(). Guess: a hook that is
# registered later, to record activations, change a gradient or look for a NaN, is such a change, or a warning tells. Seen with backend="eager":
# 1. register_forward_hook(), register_forward_pre_hook() and register_full_backward_hook() on a layer after the first call: not called, nothing
#    said; what a hook would return, zeros for the layer's output, is not taken. The plain model calls each.
# 2. A hook that was there at the first call is called, and removing it is noticed: what is looked at is the hooks that there were.
# 3. On the compiled module itself (the object that torch.compile returns) a later hook is called. So are later hooks on layers if the shape of
#    the input changes so that it is compiled anew, or with torch._dynamo.config.skip_nnmodule_hook_guards = False.
# 4. model.compile(), in place, calls later hooks, so the two ways to compile differ.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >hooks.py <<'PY'
import torch
from torch import nn

print("torch", torch.__version__)
X = torch.ones(1, 2)


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def forward_hook(module, calls):
    def hook(module, inputs, output):
        calls.append("forward")
        return torch.zeros_like(output)
    return module.register_forward_hook(hook)


def pre_hook(module, calls):
    return module.register_forward_pre_hook(lambda module, inputs: calls.append("before"))


def backward_hook(module, calls):
    return module.register_full_backward_hook(lambda module, given, out: calls.append("backward"))


def run(how, register, first, later):
    """How often a hook is called in the call that follows its registration."""
    torch._dynamo.reset()
    model, calls = made(), []
    compiled = model
    if how == "compile()":
        compiled = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    if first:
        compiled(X).sum().backward()
    register(model[0], calls)
    out = compiled(later)
    out.sum().backward()
    return len(calls), out.detach()


for register in (forward_hook, pre_hook, backward_hook):
    name = register.__name__
    counts = {how: run(how, register, True, X)[0] for how in ("plain", "compile()", "in place")}
    fresh = run("compile()", register, False, X)[0]
    print(f"{name}: later {counts}, registered before the first call {fresh}")
    assert counts == {"plain": 1, "compile()": 0, "in place": 1} and fresh == 1, f"CHANGED: {name}"
plain, compiled = (run(how, forward_hook, True, X)[1] for how in ("plain", "compile()"))
print("output where the hook gives zeros:", plain.tolist(), "compiled:", compiled.tolist())
assert not torch.allclose(plain, compiled) and torch.equal(compiled, made()(X)), "CHANGED"
other = run("compile()", forward_hook, True, torch.ones(5, 2))[0]
print("with another shape of input:", other)
assert other == 1, "CHANGED"
torch._dynamo.config.skip_nnmodule_hook_guards = False
watched = run("compile()", forward_hook, True, X)[0]
torch._dynamo.config.skip_nnmodule_hook_guards = True
print("skip_nnmodule_hook_guards = False:", watched)
assert watched == 1, "CHANGED"

torch._dynamo.reset()
model, calls = made(), []
handle = pre_hook(model[0], calls)
compiled = torch.compile(model, backend="eager")
compiled(X)
handle.remove()
for _ in range(3):
    compiled(X)
print(f"a hook that was removed after the first call: {len(calls)} call")
assert len(calls) == 1, "CHANGED"

outer = []
compiled.register_forward_hook(lambda *given: outer.append(1))
compiled(X)
assert len(outer) == 1, "CHANGED: a hook on what torch.compile returned"
PY
venv/bin/python hooks.py 2>err.log || { cat err.log; exit 1; }
