#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: hooks on parameters are never called under FSDP2.
#
# weight.register_hook(function) changes the gradient of a parameter: a mask that keeps rows frozen, a factor, a limit. Guess: fully_shard() calls
# it with the gradient that is about to be kept, or refuses it. Seen, without a word:
# 1. Registered before fully_shard() or after it, the hook is not called: gradients that it should set to 0 are as large as without it. What
#    forward uses are other tensors, made for each call.
# 2. In one process and under DistributedDataParallel it is called, and the gradient is 0.
# 3. register_post_accumulate_grad_hook() is called, if it is registered after fully_shard(), with the sharded parameter; before it, it is not.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >hooks.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def largest(place, before):
        """The largest gradient of a weight, and how often either kind of hook was called."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        calls = {"hook": 0, "post": 0}

        def hook(gradient):
            calls["hook"] += 1
            return gradient * 0

        def post(parameter):
            calls["post"] += 1

        def register():
            model[0].weight.register_hook(hook)
            model[0].weight.register_post_accumulate_grad_hook(post)

        if before:
            register()
        run = model
        if place == "fully_shard":
            fully_shard(model[0], mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif place == "DistributedDataParallel":
            run = DistributedDataParallel(model)
        if not before:
            register()
        run(torch.ones(1, 4)).sum().backward()
        gradient = model[0].weight.grad
        gradient = gradient.full_tensor() if place == "fully_shard" else gradient
        return gradient.abs().max().item(), calls

    for place in ("one process", "DistributedDataParallel", "fully_shard"):
        for before in (True, False):
            value, calls = largest(place, before)
            if rank == 0:
                print(f"{place}, hooks registered {'before' if before else 'after'}: largest gradient {value:.4f}, calls {calls}", flush=True)
            if place == "fully_shard":
                assert value > 0.1 and calls["hook"] == 0 and calls["post"] == (0 if before else 1), "CHANGED"
            else:
                assert value == 0 and calls == {"hook": 1, "post": 1}, "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python hooks.py 2>err.log || { cat err.log; exit 1; }
