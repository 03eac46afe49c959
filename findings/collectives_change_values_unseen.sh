#!/usr/bin/env bash
# torch 2.13.0+cpu, gloo, 2 processes: autograd does not notice that all_reduce or broadcast has changed a tensor it saved.
#
# A tensor that backward needs and that was changed in place meanwhile makes backward raise ("modified by an inplace operation"). Guess:
# collectives that write into a tensor count as such changes, all of them. Seen of x in z = (x * y).sum(), with x changed before z.backward():
# 1. all_reduce, broadcast, reduce, scatter and recv leave x._version at 0, and backward gives y the gradient of the new x, silently.
# 2. all_gather, all_gather_into_tensor, reduce_scatter_tensor and all_reduce_coalesced count, and backward raises.
# 3. all_reduce(h) of a tensor with history keeps the old history: backward goes on as if h had not been summed (with a warning there).
# So statistics that are averaged in place, or weights that are sent around between forward and backward, give gradients of mixed values.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >unseen.py <<'PY'
import os

import torch
import torch.distributed as dist


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ways = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 1),
        "reduce": lambda x: dist.reduce(x, 0),
        "scatter": lambda x: dist.scatter(x, [torch.full((2,), 7.0)] * 2 if rank == 0 else None),
        "recv": lambda x: dist.recv(x, 1) if rank == 0 else dist.send(torch.full((2,), 7.0), 0),
        "add_": lambda x: x.add_(1),
        "all_gather": lambda x: dist.all_gather([x, torch.zeros(2)], torch.full((2,), 7.0)),
        "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x, torch.tensor([7.0])),
        "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x, torch.ones(4)),
        "all_reduce_coalesced": lambda x: dist.all_reduce_coalesced([x]),
    }
    for way, change in ways.items():
        x, y = torch.full((2,), rank + 1.0), torch.ones(2, requires_grad=True)
        loss = (x * y).sum()
        change(x)
        try:
            loss.backward()
            found = f"gradient {y.grad.tolist()} for {[rank + 1.0] * 2}"
            noticed = False
        except RuntimeError as error:
            assert "inplace operation" in str(error)
            found, noticed = "backward raises", True
        if rank == 0:
            print(f"{way}: x is {x.tolist()}, its version {x._version}, {found}", flush=True)
            unseen = way in ("all_reduce", "broadcast", "reduce", "scatter", "recv")
            assert noticed != unseen and x.tolist() != [1, 1], f"CHANGED: {way} is {'noticed' if noticed else 'not noticed'}"
            assert noticed or y.grad.tolist() == x.tolist()
    y = torch.ones(2, requires_grad=True)
    h = y * 5
    dist.all_reduce(h)
    h.sum().backward()
    if rank == 0:
        print(f"all_reduce of h = 5 y: h is {h.tolist()}, gradient of h.sum() {y.grad.tolist()}, history {h.grad_fn.name()}")
        assert h.tolist() == [10, 10] and y.grad.tolist() == [5, 5], "CHANGED"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (os.getcwd(),), 2)
PY
venv/bin/python unseen.py 2>err.log || { cat err.log; exit 1; }
