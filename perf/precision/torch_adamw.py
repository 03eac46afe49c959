"""AdamW(fused=True) on the parameters of perf/precision.cpp, which starts this: torch_adamw.py THREADS MATRICES

A line "step" is answered by the seconds of a step of float32 parameters, "value" by the first of them."""

import sys
import time

import torch


def main() -> None:
    threads, matrices = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    parameters = [torch.nn.Parameter(torch.full((1024, 2048), 0.01)) for _ in range(matrices)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "value":
            print(parameters[0].flatten()[0].item(), flush=True)
            continue
        start = time.perf_counter()
        optimizer.step()
        print(time.perf_counter() - start, flush=True)


main()
