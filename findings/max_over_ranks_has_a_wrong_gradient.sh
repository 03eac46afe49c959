#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: gradients through a maximum, minimum, product or mean over ranks are wrong, and nothing raises.
#
# torch.distributed.nn.functional has collectives that backward goes through. Guess: for each kind of reduction the gradient of the sum of all
# ranks' losses, or an error. Seen beside differences in float64:
# 1. all_reduce with SUM and AVG, reduce with SUM, all_gather, broadcast, gather, scatter, all_to_all and reduce_scatter with SUM are right.
# 2. all_reduce with MAX gives every rank the largest of the ranks' gradients, whether it has the maximum or not; MIN the smallest, PRODUCT
#    their product: the same kind of reduction is applied to the gradients.
# 3. reduce with AVG is two times too large, by the number of ranks; with MAX, MIN and PRODUCT it gives all ranks the gradient as it is, and
#    reduce_scatter with MAX likewise.
# Warnings say that most of these functions are deprecated, none that they are wrong. The same reductions in torch.distributed._functional_collectives,
# which they point to, refuse to go backward: "only supports 'sum' reduction".
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >reductions.py <<'PY'
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed import ReduceOp


def work(rank, folder):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.double)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    start = torch.tensor([[1.0, 2.0, 3.0, 0.5], [1.3, 0.5, 4.5, 1.5]])[rank]

    def loss(reduce, x):
        """The loss of this rank: another one on each."""
        out = reduce(x)
        return (rank + 1.0) * (torch.arange(1.0, out.numel() + 1) * out.square()).sum()

    def differences(reduce, step=1e-5):
        """The gradient of the sum of the losses, by this rank's numbers."""
        result = torch.zeros(2, 4)
        for holder in range(2):
            for i in range(4):
                for sign in (1, -1):
                    x = start.clone()
                    x[i] += sign * step * (holder == rank)
                    total = loss(reduce, x)
                    dist.all_reduce(total)
                    result[holder, i] += sign * total / (2 * step)
        return result[rank]

    def halves(x, op):
        return differentiable.reduce_scatter(torch.zeros(2), [x[:2].clone(), x[2:].clone()], op)

    ways = {}
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
        op = getattr(ReduceOp, name)
        ways[f"all_reduce {name}"] = (lambda x, op=op: differentiable.all_reduce(x.clone(), op), name in ("SUM", "AVG"))
        ways[f"reduce {name}"] = (lambda x, op=op: differentiable.reduce(x.clone(), 0, op) * (rank == 0), name == "SUM")
    ways["reduce_scatter SUM"] = (lambda x: halves(x, ReduceOp.SUM), True)
    ways["reduce_scatter MAX"] = (lambda x: halves(x, ReduceOp.MAX), False)
    ways["all_gather"] = (lambda x: torch.cat(differentiable.all_gather(x)), True)
    ways["broadcast"] = (lambda x: differentiable.broadcast(x.clone(), 1), True)
    ways["gather"] = (lambda x: torch.cat(differentiable.gather(x, 0)) * (rank == 0), True)
    ways["scatter"] = (lambda x: differentiable.scatter([x[:2].clone(), x[2:].clone()], 0), True)
    ways["all_to_all_single"] = (lambda x: differentiable.all_to_all_single(torch.zeros(4), x), True)
    for name, (reduce, right) in ways.items():
        x = start.clone().requires_grad_()
        loss(reduce, x).backward()
        with torch.no_grad():
            expected = differences(reduce)
        off = torch.tensor((x.grad - expected).abs().max().item())
        dist.all_reduce(off, ReduceOp.MAX)
        if rank == 0:
            numbers = [[round(number, 3) for number in one.tolist()] for one in (x.grad, expected)]
            print(f"{name}: rank 0 has {numbers[0]}" + ("" if right else f" for {numbers[1]}"), flush=True)
        assert (off.item() < 1e-6) == right, f"CHANGED: {name}"
    for name in ("avg", "max", "min", "product"):
        x = start.clone().requires_grad_()
        try:
            loss(lambda x: functional.all_reduce(x, name, dist.group.WORLD) * 1, x).backward()
            raise SystemExit(f"CHANGED: {name} does not raise")
        except RuntimeError as error:
            assert "only supports 'sum'" in str(error)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python reductions.py 2>err.log || { cat err.log; exit 1; }
