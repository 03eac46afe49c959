#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: PeriodicModelAverager averages a layer of one rank with another layer of the other rank.
#
# Local SGD (PostLocalSGDOptimizer, PeriodicModelAverager) lets ranks train on their own and averages their parameters every few steps. Guess: each
# parameter is averaged with the same parameter of the other ranks, and all of them are. Seen of layers of equal shape, of which a step
# uses some (experts, branches, layers that are dropped at random):
# 1. Parameters without a gradient on this rank are left out, and the rest is laid end to end and averaged by its place. Where rank 0 has
#    used layers 1 and 2 and rank 1 layers 0 and 2, rank 0's layer 1 is averaged with rank 1's layer 0: 5.5 for 10.5 in both. Layers 0
#    and 1 then differ between ranks.
# 2. With zero_grad(set_to_none=False), once each layer had a gradient, all are averaged as guessed.
# 3. A layer without a gradient on all ranks (frozen after a while, say) is never averaged, so ranks keep what they made of it. Buffers, a
#    BatchNorm's means, are not averaged either.
# PostLocalSGDOptimizer averages the same way. DistributedDataParallel refuses unused parameters, or is told of them; nothing does here.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >local.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

USED = ((1, 2), (0, 2))  # layers by rank


def layers(rank):
    """Weights 0, 10, 20 on rank 0 and 1, 11, 21 on rank 1."""
    made = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    for place, layer in enumerate(made):
        torch.nn.init.constant_(layer.weight, 10.0 * place + rank)
    return made


def of_all_ranks(model, name, rank):
    found = [None, None]
    dist.all_gather_object(found, [layer.weight.item() for layer in model])
    if rank == 0:
        print(f"{name}: rank 0 has {found[0]}, rank 1 has {found[1]}", flush=True)
    return found


def use(model, rank):
    for place in USED[rank]:
        model[place](torch.zeros(1, 1)).sum().backward()  # gradients of 0: a step leaves the weights


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = layers(rank)
    use(model, rank)
    PeriodicModelAverager(period=2).average_parameters(model.parameters())
    assert of_all_ranks(model, "averaged", rank) == [[0.0, 5.5, 20.5], [5.5, 11.0, 20.5]], "CHANGED"

    model = layers(rank)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), PeriodicModelAverager(period=2))
    use(model, rank)
    optimizer.step()
    assert of_all_ranks(model, "PostLocalSGDOptimizer", rank) == [[0.0, 5.5, 20.5], [5.5, 11.0, 20.5]], "CHANGED"

    model = layers(rank)
    for layer in model:
        layer(torch.zeros(1, 1)).sum().backward()
    model.zero_grad(set_to_none=False)
    use(model, rank)
    PeriodicModelAverager(period=2).average_parameters(model.parameters())
    assert of_all_ranks(model, "gradients of 0 for None", rank) == [[0.5, 10.5, 20.5]] * 2, "CHANGED"

    model = layers(rank)
    for place in (0, 2):
        model[place](torch.zeros(1, 1)).sum().backward()
    PeriodicModelAverager(period=2).average_parameters(model.parameters())
    assert of_all_ranks(model, "layer 1 unused everywhere", rank) == [[0.5, 10.0, 20.5], [0.5, 11.0, 20.5]], "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python local.py 2>err.log || { cat err.log; exit 1; }
