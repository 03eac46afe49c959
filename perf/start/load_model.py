"""Python's safetensors on the model of perf/start.cpp, which starts this: load_model.py BLOCKS LAYERS WIDTH

A line "save PATH" writes the model; "load THREADS PATH" reads it, as a program does that goes on with it. Each is answered by
the seconds that it took."""

import sys
import time

import torch
from safetensors.torch import load_model, save_model


def main() -> None:
    blocks, layers, width = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))) for _ in range(blocks))
    )
    print("ready", flush=True)
    for line in sys.stdin:
        what, *threads, path = line.split()
        if threads:
            torch.set_num_threads(int(threads[0]))
        start = time.perf_counter()
        if what == "save":
            save_model(model, path)
        else:
            load_model(model, path)
        print(time.perf_counter() - start, flush=True)


main()
