"""torch.utils.checkpoint on the GPT of perf/recompute.cpp, which starts this and asks for a step a line.

A line "kept ROWS" or "full ROWS" is answered by the seconds of forward and backward, and the loss; with "peak." before it
by the bytes that tensors made by the step take at most, as the allocator tells the profiler."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from models import Gpt, fill


def step(net, tokens, way):
    wte, wpe, blocks, ln_f = (net.transformer[name] for name in ("wte", "wpe", "h", "ln_f"))
    x = wte(tokens) + wpe(torch.arange(tokens.shape[1]))
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if way == "full" else block(x)
    scores = net.lm_head(ln_f(x))[:, :-1]
    loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item()


def peak_bytes(net, tokens, way):
    step(net, tokens, way)  # gradients are there
    for parameter in net.parameters():
        parameter.grad.zero_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(net, tokens, way)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def main() -> None:
    threads, vocabulary, length, width, heads, layers = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    net = Gpt(vocabulary, length, width, heads, layers)
    fill(net)
    print("ready", flush=True)
    for line in sys.stdin:
        way, rows = line.split()
        row = torch.arange(int(rows)).unsqueeze(1)
        tokens = ((row * 37 + 11) + (row % 7 + 1) * torch.arange(length)) % vocabulary
        if way.startswith("peak."):
            print(peak_bytes(net, tokens, way[5:]), flush=True)
            continue
        net.zero_grad()
        start = time.perf_counter()
        loss = step(net, tokens, way)
        print(time.perf_counter() - start, loss, flush=True)


main()
