#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 3 processes: mse_loss of sharded DTensors has the right value and a gradient that is too large by the number of ranks.
#
# DTensors compute what one process computes, and ranks change nothing but the place. Guess: of equal shards that holds for losses and their
# gradients. Seen of 6 rows in shards of 2, backward() of the loss as it is:
# 1. mse_loss, smooth_l1_loss, huber_loss, binary_cross_entropy and soft_margin_loss (reduction "mean") have the value of one process, and
#    three times its gradient: each rank divides by its own count of elements, and nothing divides the gradient by the ranks.
# 2. Shards of the other dimension are alike. reduction="sum", reduction="none" and then mean(), (a - b).square().mean(), l1_loss,
#    binary_cross_entropy_with_logits, kl_div and cross_entropy have the right gradient.
# 3. x.abs().amax(), a norm of kind infinity, is right, and its gradient is infinite there and NaN everywhere else.
# Adam hides the factor; SGD, clipping, weight decay beside it and a sum with another loss do not.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >factor.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as f

losses = {  # of x and a target between 0 and 1; the factor of the gradient
    "mse_loss": (f.mse_loss, 3),
    "smooth_l1_loss": (f.smooth_l1_loss, 3),
    "huber_loss": (f.huber_loss, 3),
    "binary_cross_entropy": (lambda x, y: f.binary_cross_entropy(x.sigmoid(), y), 3),
    "soft_margin_loss": (lambda x, y: f.soft_margin_loss(x, (y - 0.5).sign()), 3),
    "mse_loss, sum": (lambda x, y: f.mse_loss(x, y, reduction="sum"), 1),
    "mse_loss, none, mean()": (lambda x, y: f.mse_loss(x, y, reduction="none").mean(), 1),
    "(x - y).square().mean()": (lambda x, y: (x - y).square().mean(), 1),
    "l1_loss": (f.l1_loss, 1),
    "binary_cross_entropy_with_logits": (f.binary_cross_entropy_with_logits, 1),
    "kl_div": (lambda x, y: f.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), 1),
    "cross_entropy": (lambda x, y: f.cross_entropy(x, y.argmax(1)), 1),
    "abs().amax()": (lambda x, y: x.abs().amax(), float("nan")),
}


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    mesh = init_device_mesh("cpu", (3,))
    torch.manual_seed(0)
    start, target = torch.randn(6, 6), torch.rand(6, 6)
    for name, (loss, factor) in losses.items():
        alone = start.clone().requires_grad_()
        expected = loss(alone, target)
        expected.backward()
        for dimension in (0, 1):
            x = distribute_tensor(start.clone(), mesh, [Shard(dimension)]).requires_grad_()
            value = loss(x, distribute_tensor(target, mesh, [Shard(dimension)]))
            value.backward()
            value, gradient = value.full_tensor().item(), x.grad.full_tensor()
            if rank == 0:
                ratio = (gradient.norm() / alone.grad.norm()).item()
                print(f"{name}, shards of dimension {dimension}: {value:.6f} for {expected.item():.6f}, gradient {ratio:.6f} times the right one", flush=True)
            assert abs(value - expected.item()) < 1e-5
            if factor == factor:
                assert torch.allclose(gradient, factor * alone.grad, rtol=1e-4, atol=1e-6), f"CHANGED: the factor of {name}"
            else:
                assert gradient.isnan().sum() == 35 and gradient.isinf().sum() == 1, f"CHANGED: the gradient of {name}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 3)
PY
venv/bin/python factor.py 2>err.log || { cat err.log; exit 1; }
