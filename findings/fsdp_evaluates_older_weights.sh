#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: after an evaluation FSDP2 keeps the gathered weights, and the next one does not see what was written since.
#
# Averaged weights are tried by evaluating, writing them into the parameters, evaluating again and writing the old ones back. Guess: each forward
# of fully_shard() gathers what the shards hold then, as memory is what it saves. Seen of fully_shard(model) as it comes:
# 1. The module on which it is called first, the root, keeps its gathered weights after a forward, for the backward to come. Under no_grad() no
#    backward comes: a second forward uses them again. Weights that were doubled in between, through the parameters that the optimizer
#    has, give the same output to the bit; if only the whole model was wrapped, no weight is seen to change.
# 2. A forward of training that follows uses the old ones too, and its gradient is theirs; only its backward lets go of them.
# 3. model.parameters() after such a forward are whole tensors that are dropped later: what is written into them is lost.
# 4. load_state_dict(), state_dict(), model.reshard() and reshard_after_forward=True make the next forward gather; layers wrapped by
#    themselves within the root gather each time.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >evaluate.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

X = torch.ones(1, 4)


def sharded(mesh, layers=False, **options):
    """A linear model of weights 1, and its parameters as an optimizer would have them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False))
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    if layers:
        for layer in model:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, **options)
    return model, list(model.parameters())


@torch.no_grad()
def output(model):
    return model(X).item()


@torch.no_grad()
def double(parameters):
    for parameter in parameters:
        parameter.mul_(2)


def between(mesh, write, **options):
    """What the model gives before and after write(model, parameters)."""
    model, parameters = sharded(mesh, **options)
    before = output(model)
    write(model, parameters)
    return before, output(model)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def say(text):
        if rank == 0:
            print(text, flush=True)

    def shards(model, parameters):
        double(parameters)

    def reshard(model, parameters):
        double(parameters)
        model.reshard()

    for name, write, options, after in (("the optimizer's parameters", shards, {}, 16), ("the same, then reshard()", reshard, {}, 64),
                                        ("the same, reshard_after_forward=True", shards, {"reshard_after_forward": True}, 64),
                                        ("the same, layers wrapped by themselves", shards, {"layers": True}, 64)):
        found = between(mesh, write, **options)
        say(f"{name} doubled between two evaluations: {found}")
        assert found == (16, after), "CHANGED"

    model, parameters = sharded(mesh)
    output(model)
    double(parameters)
    loss = model(X).sum()
    loss.backward()
    gradient = parameters[1].grad.full_tensor().flatten()[0].item()
    again = model(X).sum()
    say(f"a training step behind it: loss {loss.item()}, gradient {gradient}; the next loss is {again.item()}")
    assert (loss.item(), gradient, again.item()) == (16, 4, 64), "CHANGED"

    model, parameters = sharded(mesh)
    output(model)
    double(model.parameters())
    seen = output(model)
    model.reshard()
    say(f"model.parameters() doubled after an evaluation: {seen}, after reshard() {output(model)}")
    assert output(model) == 16, "CHANGED: what is written there is kept"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.start_processes(work, (os.getcwd(),), 2, start_method="fork")
PY
venv/bin/python evaluate.py 2>err.log || { cat err.log; exit 1; }
