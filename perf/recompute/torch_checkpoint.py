"""torch.utils.checkpoint on the GPT of perf/recompute.cpp, which starts this and asks for a step a line.

A line "kept ROWS" or "full ROWS" is answered by the seconds of forward and backward, and the loss."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from models import Gpt, fill


def main() -> None:
    threads, vocabulary, length, width, heads, layers = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    net = Gpt(vocabulary, length, width, heads, layers)
    fill(net)
    wte, wpe, blocks, ln_f = (net.transformer[name] for name in ("wte", "wpe", "h", "ln_f"))
    print("ready", flush=True)
    for line in sys.stdin:
        way, rows = line.split()
        row = torch.arange(int(rows)).unsqueeze(1)
        tokens = ((row * 37 + 11) + (row % 7 + 1) * torch.arange(length)) % vocabulary
        net.zero_grad()
        start = time.perf_counter()
        x = wte(tokens) + wpe(torch.arange(length))
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if way == "full" else block(x)
        scores = net.lm_head(ln_f(x))[:, :-1]
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        print(time.perf_counter() - start, loss.item(), flush=True)


main()
