#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: a save of torch.distributed.checkpoint that fails leaves half of it in the checkpoint that was there.
#
# dcp.save() writes its metadata last, so that what was not finished is no checkpoint. Guess: a save to the folder of the last checkpoint
# ("latest") that raises leaves that one whole, or at least nothing that loads. Seen, where the disk of rank 1 is full:
# 1. save() raises CheckpointException on both ranks. Then load() succeeds: rows 0 and 1 of the weight are those of the new save, rows 2 and
#    3 of the old one, the step that is loaded is the old one, and nothing is said.
# 2. Files have the same names each time, data of the ranks that got through are replaced at once, and the old metadata fits them, since
#    sizes and places are those of before.
# 3. FileSystemWriter(folder, overwrite=False) refuses such a folder, and the old checkpoint is kept; the default overwrites.
# So each save wants a folder of its own, and a job that was killed in the middle must not go on from the folder it was writing.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >halves.py <<'PY'
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


class Disk(dcp.FileSystemWriter):
    """A disk that is full on rank 1."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def state(number):
        return {"weight": distribute_tensor(torch.full((4,), float(number)), mesh, [Shard(0)]), "step": number}

    for overwrite in (True, False):
        place = f"{folder}/{overwrite}"
        dcp.save(state(1), checkpoint_id=place)
        names = sorted(os.listdir(place))
        try:
            dcp.save(state(2), storage_writer=Disk(place) if overwrite else Disk(place, overwrite=False))
            raise SystemExit("CHANGED: save() does not raise")
        except CheckpointException as error:
            said = str(error).strip().splitlines()[-1]
        loaded = state(0)
        dcp.load(loaded, checkpoint_id=place)
        weight = loaded["weight"].full_tensor().tolist()
        if rank == 0:
            print(f"save raised '{said}'; then loaded: weight {weight}, step {loaded['step']}; files {sorted(os.listdir(place))}", flush=True)
        assert sorted(os.listdir(place)) == names and loaded["step"] == 1
        assert weight == ([2, 2, 1, 1] if overwrite else [1, 1, 1, 1]), "CHANGED: the old checkpoint is kept"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python halves.py 2>err.log || { cat err.log; exit 1; }
