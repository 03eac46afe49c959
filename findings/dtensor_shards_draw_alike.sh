#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: values that are drawn into shards on CPUs are the same on every rank.
#
# The usual way to start a large model with FSDP2 is to make it on the meta device, shard it, give it memory and call reset_parameters().
# Guess: as on GPUs, random operators on DTensors draw what one process would draw, or at least other numbers for other shards. Seen
# with one seed on all ranks, which is what replicated values need:
# 1. Both halves of a weight are the same numbers: 8 rows of an initialisation are 4 rows twice. So a Linear has half as many different
#    units, which get different gradients only by what comes after them.
# 2. Dropout of a sharded activation drops the same places of each shard.
# 3. A weight that is initialised whole, then sharded, is as in one process. The only hint is a UserWarning, "DTensor random operators may
#    not have complete support on cpu device mesh".
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >shards.py <<'PY'
import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.device("meta"):
            layer = torch.nn.Linear(16, 8)
        fully_shard(layer, mesh=mesh)
        layer.to_empty(device="cpu")
        torch.manual_seed(0)
        layer.reset_parameters()
        dropped = torch.nn.functional.dropout(distribute_tensor(torch.ones(64), mesh, [Shard(0)])).full_tensor()
    late = layer.weight.full_tensor()

    torch.manual_seed(0)
    alone = torch.nn.Linear(16, 8)
    torch.manual_seed(0)
    early = torch.nn.Linear(16, 8)
    fully_shard(early, mesh=mesh)
    whole = early.weight.full_tensor()
    if rank == 0:
        print("warnings:", {str(one.message) for one in said if "DTensor" in str(one.message)})
        print("sharded, then initialised: rows 0..3 equal rows 4..7:", torch.equal(late[:4], late[4:]), "; as in one process:",
              torch.equal(late, alone.weight))
        print("dropout: both shards drop the same places:", torch.equal(dropped[:32], dropped[32:]))
        print("initialised, then sharded: as in one process:", torch.equal(whole, alone.weight))
        assert torch.equal(late[:4], late[4:]), "CHANGED: shards differ"
        assert torch.equal(dropped[:32], dropped[32:]) and 0 < int((dropped == 0).sum()) < 64, "CHANGED: masks differ"
        assert torch.equal(whole, alone.weight) and not torch.equal(whole[:4], whole[4:])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python shards.py 2>err.log || { cat err.log; exit 1; }
