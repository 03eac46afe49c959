#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: what ranks save under one name, torch.distributed.checkpoint keeps once, of a rank that sizes decide.
#
# Beside a model each rank saves what is its own: its random generator, its place in the data. Guess: as each rank writes a file of its own,
# each gets its own values back; or all get rank 0's; or different values under one name are refused. Seen, with nothing said:
# 1. Each name is kept once, and load() gives all ranks that value: both go on with the generator of one of them.
# 2. Which rank's it is, is decided name by name: whoever has the least to write so far. With a model of 4000 bytes before them the generator is
#    rank 1's and the place in the data rank 0's, so what is restored never was together; without the model it is the other way round.
# 3. DefaultSavePlanner(dedup_save_to_lowest_rank=True) keeps rank 0's of all. A name for each rank (f"rng.{rank}") keeps each rank's own.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >names.py <<'PY'
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def state(rank, model, suffix=""):
    generator = torch.Generator().manual_seed(rank)
    kept = {"model": {"weight": torch.ones(1000)}} if model else {}
    return kept | {"rng" + suffix: generator.get_state(), "position" + suffix: 100 + rank}


def restored(rank, name, model=True, suffix="", **options):
    """Of which rank the generator and the position are that this rank gets back, of all ranks."""
    dcp.save(state(rank, model, suffix), checkpoint_id=name, planner=dcp.DefaultSavePlanner(**options))
    loaded = state(7, model, suffix)
    dcp.load(loaded, checkpoint_id=name)
    owner = next(other for other in range(2) if torch.equal(loaded["rng" + suffix], state(other, model)["rng"]))
    found = [None, None]
    dist.all_gather_object(found, (owner, loaded["position" + suffix] - 100))
    if rank == 0:
        print(f"{name}: (rank of the generator, rank of the position) on both ranks: {found}", flush=True)
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    assert restored(rank, "with a model") == [(1, 0), (1, 0)], "CHANGED"
    assert restored(rank, "without a model", model=False) == [(0, 1), (0, 1)], "CHANGED"
    assert restored(rank, "to the lowest rank", dedup_save_to_lowest_rank=True) == [(0, 0), (0, 0)], "CHANGED"
    assert restored(rank, "a name for each rank", suffix=f".{rank}") == [(0, 0), (1, 1)], "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.start_processes(work, (os.getcwd(),), 2, start_method="fork")
PY
venv/bin/python names.py 2>err.log || { cat err.log; exit 1; }
