#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: FSDP2 adds up gradients in bfloat16 while it is told not to send them, and in float32 while it sends them.
#
# set_requires_gradient_sync(False) until the last microbatch saves messages. Guess: it is a matter of speed and memory; the sums are those
# of sending each time, as .grad and the parameters are float32. Seen of MixedPrecisionPolicy(param_dtype=torch.bfloat16), 600 microbatches
# whose gradient is 1:
# 1. Sent each time, the gradient is 600. Sent with the last one only, it is 256, on all ranks: the sum of bfloat16 numbers stops there. Its
#    dtype is float32 in both cases.
# 2. With reduce_dtype=torch.float32 both ways give 600: what is not sent yet is then kept in float32.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >sums.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def gradient(mesh, reduce_dtype, sync, microbatches):
    linear = torch.nn.Linear(4, 4, bias=False)
    fully_shard(linear, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype))
    for number in range(microbatches):
        linear.set_requires_gradient_sync(sync or number == microbatches - 1)
        linear(torch.ones(1, 4)).sum().backward()
    assert linear.weight.grad.dtype == linear.weight.dtype == torch.float32
    found = linear.weight.grad.full_tensor().unique().tolist()
    assert len(found) == 1
    return found[0]


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for dtype in (None, torch.float32):
        each, last = (gradient(mesh, dtype, sync, 600) for sync in (True, False))
        if rank == 0:
            print(f"reduce_dtype {dtype}, 600 gradients of 1: sent each time {each}, with the last only {last}", flush=True)
        assert each == 600 and last == (256 if dtype is None else 600), "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python sums.py 2>err.log || { cat err.log; exit 1; }
