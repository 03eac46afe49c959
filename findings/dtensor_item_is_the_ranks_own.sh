#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: item(), float() and bool() of a DTensor give each rank its own part of a pending sum.
#
# A DTensor behaves as the whole tensor, whatever rank holds what; a reduction leaves a Partial, to be summed when somebody needs it.
# Guess: item() is somebody who needs it, or raises. Seen of 1..5 in shards of 3 and 2:
# 1. x.sum().item() is 6 on rank 0 and 9 on rank 1; float(), int(), max, mean and norm alike. full_tensor() gives 15.
# 2. bool(x.isnan().any()) is False on the rank whose shard is sound and True on the other: "if nan: skip" parts the ranks. So do
#    isfinite().all() and (a == b).all(). torch.equal(a, b) is right, and so is a comparison of the sum (s > 10), which sums first.
# 3. mse_loss of shards of 3 and 2 rows is the mean of the ranks' means, 4.5 for 3.6; (a - b).square().mean() is right.
# 4. cross_entropy with class weights is likewise 1.26 for 1.03, and NaN for 0.90 where a rank's labels are all ignored;
#    the gradients are those of the right value all the same, so training goes well and the curve is wrong.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >items.py <<'PY'
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy, mse_loss


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def shards(values):
        return distribute_tensor(torch.as_tensor(values), mesh, [Shard(0)])

    def ranks(what, value):
        """The value of each rank."""
        values = [None, None]
        dist.all_gather_object(values, value)
        if rank == 0:
            print(f"{what}: {values}", flush=True)
        return values

    x = shards([1.0, 2.0, 3.0, 4.0, 5.0])
    total = x.sum()
    assert ranks("sum().full_tensor()", total.full_tensor().item()) == [15, 15]
    assert ranks("sum().item()", total.item()) == [6, 9], "CHANGED: item() sums"
    assert ranks("float(sum())", float(total)) == [6, 9], "CHANGED"
    assert ranks("max().item()", x.max().item()) == [3, 5], "CHANGED"
    assert ranks("sum() > 10", bool(total > 10)) == [True, True], "CHANGED: comparisons do not sum"
    nan, sound = shards([1.0, 2.0, 3.0, float("nan")]), shards([1.0, 2.0, 3.0, 4.0])
    assert ranks("bool(isnan().any())", bool(nan.isnan().any())) == [False, True], "CHANGED"
    assert ranks("bool(isfinite().all())", bool(nan.isfinite().all())) == [True, False], "CHANGED"
    assert ranks("bool((a == b).all())", bool((nan == sound).all())) == [True, False], "CHANGED"
    assert ranks("torch.equal", torch.equal(nan, sound)) == [False, False], "CHANGED"

    rows = torch.tensor([[0.0, 0.0]] * 3 + [[3.0, 3.0]] * 2)
    loss = mse_loss(shards(rows), shards(torch.zeros(5, 2))).full_tensor().item()
    byhand = shards(rows).square().mean().full_tensor().item()
    assert ranks("mse_loss of 3 and 2 rows, (a - b).square().mean()", (loss, round(byhand, 4)))[0] == (4.5, 3.6), "CHANGED"

    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels, weights = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([1.0, 2.0, 5.0])
    for options in ({"weight": weights}, {"ignore_index": 0}):
        whole = scores.clone().requires_grad_()
        right = cross_entropy(whole, labels, **options)
        right.backward()
        split = distribute_tensor(scores, mesh, [Shard(0)]).requires_grad_()
        if "weight" in options:
            options = {"weight": distribute_tensor(weights, mesh, [Replicate()])}
        loss = cross_entropy(split, shards(labels), **options)
        loss.backward()
        apart = (split.grad.full_tensor() - whole.grad).abs().max().item()
        found = ranks(f"cross_entropy, {list(options)}: DTensor, one tensor, difference of gradients",
                      (loss.full_tensor().item(), right.item(), apart))
        assert not abs(found[0][0] - found[0][1]) < 0.1 and apart < 1e-6, "CHANGED: the loss is right, or the gradient wrong"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python items.py 2>err.log || { cat err.log; exit 1; }
