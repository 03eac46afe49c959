"""The round trip of a tiny module on another rank, y = x * w with 4 floats, by torch RPC: as perf/remote_call.cpp."""

import time

import torch
import torch.distributed as dist
from torch import Tensor

WARM_UP_CALLS = 20
weight = torch.ones(1, requires_grad=True)


def scale(x: Tensor) -> Tensor:
    return x * weight


def measure(calls: int) -> dict[str, list[float]]:
    """Microseconds of `calls` calls, forward alone and with backward, on rank 0."""
    from torch.distributed import autograd, rpc

    answer: dict[str, list[float]] = {"forward": [], "forward_backward": []}
    dist.barrier()
    if dist.get_rank() > 0:
        return answer
    x = torch.randn(4, requires_grad=True)
    gradient = torch.ones(4)
    for count in range(WARM_UP_CALLS + calls):
        with autograd.context() as context:
            start = time.perf_counter()
            y = rpc.rpc_sync("rank1", scale, (x,))
            forward = time.perf_counter()
            autograd.backward(context, [(y * gradient).sum()])
            end = time.perf_counter()
        if count >= WARM_UP_CALLS:
            answer["forward"].append((forward - start) * 1e6)
            answer["forward_backward"].append((end - start) * 1e6)
    return answer
