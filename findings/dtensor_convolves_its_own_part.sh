#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: a convolution of a DTensor whose length or height is sharded is each rank's own, and calls itself whole.
#
# Guess: conv1d and conv2d of a DTensor give what one process gives, with edges exchanged between neighbours or after a gather, or raise.
# Seen of a weight that is replicated, kernel 3, padding 1:
# 1. Of length 8 in two shards comes a result of shape [4, 2, 4] for [4, 2, 8], with the placement Replicate: each rank has the convolution
#    of its own half, with zeros beyond it. Rows or columns of images, transposed convolutions and kernels of 1 are alike.
# 2. full_tensor() has other numbers on each rank, and a mean over positions, as at the end of a classifier, hides the shape: ranks then go on
#    with other scores, and none is right.
# 3. Shards of the batch are right; shards of channels raise.
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional as f


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    line, image = torch.randn(4, 2, 8), torch.randn(4, 2, 8, 8)
    three, square, one = torch.randn(2, 2, 3), torch.randn(2, 2, 3, 3), torch.randn(2, 2, 1)
    ways = {
        "conv1d": (lambda x, w: f.conv1d(x, w, padding=1), line, three),
        "conv1d, kernel 1": (f.conv1d, line, one),
        "conv_transpose1d": (lambda x, w: f.conv_transpose1d(x, w, padding=1), line, three),
        "conv2d": (lambda x, w: f.conv2d(x, w, padding=1), image, square),
    }
    for name, (convolve, x, w) in ways.items():
        expected = convolve(x, w)
        for dimension in range(x.dim()):
            given = distribute_tensor(x, mesh, [Shard(dimension)]), distribute_tensor(w, mesh, [Replicate()])
            if dimension == 1:
                try:
                    convolve(*given)
                    raise SystemExit("CHANGED: channels do not raise")
                except RuntimeError as error:
                    assert "channels" in str(error)
                continue
            found = convolve(*given)
            whole = found.full_tensor()
            right = whole.shape == expected.shape and torch.allclose(whole, expected, atol=1e-5)
            mean = found.mean().full_tensor().item()
            means = [None, None]
            dist.all_gather_object(means, mean)
            if rank == 0:
                print(f"{name}, dimension {dimension} sharded: shape {tuple(whole.shape)} for {tuple(expected.shape)}, {found.placements[0]},",
                      f"means of the ranks {means[0]:.4f} {means[1]:.4f} for {expected.mean().item():.4f}", flush=True)
            assert right == (dimension == 0), f"CHANGED: {name}"
            if dimension > 1:
                own = convolve(x.chunk(2, dimension)[rank], w)
                assert found.placements[0].is_replicate() and torch.allclose(whole, own, atol=1e-5) and means[0] != means[1], "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python parts.py 2>err.log || { cat err.log; exit 1; }
