#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: what is written into a part of a DTensor is lost without a word.
#
# x[3] of a tensor is a view, and writing into it writes into x. Guess: of a sharded DTensor likewise, or it raises, as other in-place
# operations do there ("that require placement changes are not supported"). Seen of a weight whose rows are sharded:
# 1. x[3].zero_(), x[1:4].mul_(2), x.narrow(0, 1, 2).zero_(), x.chunk(3)[1].zero_(), x[3] = row and x[0:2] = rows leave x as it was: the
#    part that is written is a copy gathered from all ranks. x[3] = 7.0 raises; x[:, 1].zero_(), along the whole dimension, writes.
# 2. nn.Embedding(..., padding_idx=3), made on the meta device, sharded by fully_shard() and initialised by its reset_parameters() has random
#    numbers in the padding row for 0, and keeps them, as that row gets no gradient.
# 3. x.index_add_(0, i, rows) adds nothing, and afterwards x calls itself replicated: full_tensor() is each rank's own shard.
# 4. x.sum(0).fill_(3) is 6: each rank fills its part of a sum to come.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >parts.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(1.0, 25.0).reshape(6, 4)

    def say(*words):
        if rank == 0:
            print(*words, flush=True)

    writes = {
        "x[3].zero_()": lambda x: x[3].zero_(),
        "x[1:4].mul_(2)": lambda x: x[1:4].mul_(2),
        "x.narrow(0, 1, 2).zero_()": lambda x: x.narrow(0, 1, 2).zero_(),
        "x.chunk(3)[1].zero_()": lambda x: x.chunk(3)[1].zero_(),
        "x[3] = row": lambda x: x.__setitem__(3, x[0] * 2),
        "x[0:2] = rows": lambda x: x.__setitem__(slice(0, 2), x[2:4] * 2),
        "x[:, 1].zero_()": lambda x: x[:, 1].zero_(),
    }
    for name, write in writes.items():
        expected = whole.clone()
        write(expected)
        assert not torch.equal(expected, whole)
        x = distribute_tensor(whole.clone(), mesh, [Shard(0)])
        write(x)
        found = x.full_tensor()
        lost, right = torch.equal(found, whole), torch.equal(found, expected)
        say(f"{name}: lost {lost}, written {right}")
        assert right if name == "x[:, 1].zero_()" else lost, f"CHANGED: {name}"
    try:
        distribute_tensor(whole.clone(), mesh, [Shard(0)])[3] = 7.0
        raise SystemExit("CHANGED: x[3] = 7.0 does not raise")
    except NotImplementedError as error:
        say("x[3] = 7.0:", str(error).splitlines()[0])

    with torch.device("meta"):
        table = torch.nn.Embedding(8, 4, padding_idx=3)
    fully_shard(table, mesh=mesh)
    table.to_empty(device="cpu")
    table.reset_parameters()
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    table(torch.tensor([3, 3, 5])).sum().backward()
    optimizer.step()
    row = table.weight.full_tensor()[3]
    say("padding row of an Embedding, after a step:", row.tolist(), "for", torch.nn.Embedding(8, 4, padding_idx=3).weight[3].tolist())
    assert row.abs().min() > 0, "CHANGED: the row is 0"

    x = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    x.index_add_(0, *(distribute_tensor(one, mesh, [Replicate()]) for one in (torch.tensor([1]), torch.ones(1, 4))))
    say("after index_add_ x is", x.placements, "of shape", tuple(x.shape), "and full_tensor() on rank 0", x.full_tensor().tolist())
    assert torch.equal(x.full_tensor(), whole[:3] if rank == 0 else whole[3:]), "CHANGED: index_add_ adds, or refuses"

    filled = distribute_tensor(whole.clone(), mesh, [Shard(0)]).sum(0).fill_(3.0).full_tensor()
    say("sum(0).fill_(3):", filled.tolist())
    assert filled.tolist() == [6.0] * 4, "CHANGED: fill_ fills"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python parts.py 2>err.log || { cat err.log; exit 1; }
