#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 3 processes: collectives pair elements by their place in memory, and reduce() leaves partial sums elsewhere.
#
# Guess: a tensor of the same shape and dtype on each rank is all that a collective wants; strides are each rank's own business, or an
# error. And reduce(x, dst=0) changes x on rank 0 only. Seen, and nothing raises:
# 1. broadcast of [[0, 1, 2], [3, 4, 5]] into a transposed tensor of the same shape gives [[0, 2, 4], [1, 3, 5]] there.
# 2. all_reduce of equal tensors, one of them transposed (or channels_last), adds elements of different places: [[0, 1, 2], [3, 4, 5]] thrice
#    is not [[0, 3, 6], [9, 12, 15]]. So weights that one rank made contiguous and another did not are mixed up.
# 3. all_reduce of some columns, x[:, :3] of six, sums the first six numbers in memory: the first row whole, with columns that were
#    not given, and the second row not at all.
# 4. reduce() to rank 0 of [1, 2] on each leaves [3, 6] there, [2, 4] on rank 1 and [1, 2] on rank 2: x is no longer the own value.
#    A second reduce() of the same tensors, for a logged mean say, starts from those.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >pairs.py <<'PY'
import os

import torch
import torch.distributed as dist


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)

    def ranks(what, tensor):
        """The tensor of each rank, as nested lists."""
        values = [None] * 3
        dist.all_gather_object(values, tensor.tolist())
        if rank == 0:
            print(f"{what}: {values}", flush=True)
        return values

    rows = torch.arange(6.0).reshape(2, 3)
    target = rows.clone() if rank == 0 else torch.zeros(3, 2).t()
    dist.broadcast(target, 0)
    assert ranks("broadcast", target)[1] == [[0, 2, 4], [1, 3, 5]], "CHANGED: by index, or refused"

    mixed = rows.t().contiguous().t() if rank == 2 else rows.clone()
    assert torch.equal(mixed, rows)
    dist.all_reduce(mixed)
    assert ranks("all_reduce, rank 2 transposed", mixed)[0] != (3 * rows).tolist(), "CHANGED: by index, or refused"

    image = torch.arange(16.0).reshape(1, 2, 2, 4)
    mixed = image.to(memory_format=torch.channels_last) if rank else image.clone()
    dist.all_reduce(mixed)
    assert not torch.equal(mixed, 3 * image), "CHANGED: by index, or refused"

    whole = torch.arange(12.0).reshape(2, 6)
    columns = whole[:, :3]
    dist.all_reduce(columns)
    assert ranks("all_reduce of the left half of [[0..5], [6..11]] leaves", whole)[0] == [[0, 3, 6, 9, 12, 15], [6, 7, 8, 9, 10, 11]], \
        "CHANGED: columns are summed, or refused"

    own = torch.tensor([1.0, 2.0])
    dist.reduce(own, 0)
    assert ranks("reduce to rank 0", own) == [[3, 6], [2, 4], [1, 2]], "CHANGED: other ranks keep their values"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 3)
PY
venv/bin/python pairs.py 2>err.log || { cat err.log; exit 1; }
