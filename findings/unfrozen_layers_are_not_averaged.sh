#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: layers that are unfrozen under DistributedDataParallel are trained by each rank for itself.
#
# Fine-tuning often begins with frozen layers and unfreezes them later, parameter.requires_grad_(True). Guess: DDP averages the gradients of
# all parameters that have one, or complains about those that it does not know. Seen of layers that were frozen when the model was wrapped:
# 1. Their gradients are each rank's own, and after the step ranks have different weights; nothing is raised or warned of. Layers that were not
#    frozen are averaged as before. A checkpoint then holds what one rank has.
# 2. If they are unfrozen before the wrapping, or the model is wrapped once more, all are averaged.
# 3. fully_shard() averages what was unfrozen after it.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >unfreeze.py <<'PY'
import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def step(net, call, rank):
    """Gradients and then weights of both layers after a step, as a sum each, from all ranks."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    optimizer.zero_grad()
    call(torch.full((1, 2), float(rank + 1))).sum().backward()
    gradients = [whole(parameter.grad).sum().item() for parameter in net.parameters()]
    optimizer.step()
    mine = gradients + [whole(parameter.detach()).sum().item() for parameter in net.parameters()]
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for way in ("unfrozen after DDP", "unfrozen before DDP", "wrapped again", "unfrozen after fully_shard"):
        net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
        for parameter in net.parameters():
            torch.nn.init.ones_(parameter)
        net[0].weight.requires_grad_(way == "unfrozen before DDP")
        call = fully_shard(net, mesh=mesh) if "fully_shard" in way else DistributedDataParallel(net)
        net[0].weight.requires_grad_(True)
        if way == "wrapped again":
            call = DistributedDataParallel(net)
        first, second = step(net, call, rank)
        if rank == 0:
            print(f"{way}: gradients and weights of both layers on rank 0 {first}, on rank 1 {second}", flush=True)
        apart = way == "unfrozen after DDP"
        assert (first[0], second[0]) == ((4, 8) if apart else (6, 6)), "CHANGED"
        assert first[1] == second[1] == 6 and (first[2] != second[2]) == apart, "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.start_processes(work, (os.getcwd(),), 2, start_method="fork")
PY
venv/bin/python unfreeze.py 2>err.log || { cat err.log; exit 1; }
