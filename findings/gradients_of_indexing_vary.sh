#!/usr/bin/env bash
# torch 2.13.0+cpu: the gradient of x[indices] differs from run to run on the CPU, in one process with one seed.
#
# Guess: on a CPU the same program, seed and number of threads give the same bits; what is not deterministic is said to be so of GPUs.
# Seen with two threads, a table of 50 float32 rows that 200,000 indices read, the same gradient computed 30 times:
# 1. x[indices] and x.take(indices): 30 different gradients, some 5e-4 apart; their backward adds with atomic operations,
#    in the order in which threads come by.
# 2. embedding, index_select and gather, which read the same rows, give one and the same gradient each time.
# 3. With one thread, in float64, or under use_deterministic_algorithms(True), x[indices] gives one gradient as well.
# So a model that looks up rows by brackets (relative positions, class tables) is not repeatable, and nothing says so.
#
# Fails if it changes. Takes one to three minutes, mostly the installation, and two cores for some seconds.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >gradients.py <<'PY'
import torch
from torch.nn.functional import embedding

print("torch", torch.__version__)
torch.manual_seed(0)
indices = torch.randint(0, 50, (200000,))
factors = torch.randn(200000, 8)

ways = {
    "x[indices]": lambda table: table[indices],
    "take": lambda table: table.take(indices[:, None] * 8 + torch.arange(8)),
    "embedding": lambda table: embedding(indices, table),
    "index_select": lambda table: table.index_select(0, indices),
    "gather": lambda table: table.gather(0, indices[:, None].expand(-1, 8)),
}


def gradients(way, dtype=torch.float32, threads=2):
    """How many different gradients 30 equal computations gave, and the largest difference."""
    torch.set_num_threads(threads)
    seen = []
    for _ in range(30):
        table = torch.zeros(50, 8, dtype=dtype, requires_grad=True)
        (ways[way](table) * factors.to(dtype)).sum().backward()
        seen.append(table.grad)
    apart = max((one - seen[0]).abs().max().item() for one in seen)
    return len({one.numpy().tobytes() for one in seen}), apart


found = {way: gradients(way) for way in ways}
for way, (kinds, apart) in found.items():
    print(f"{way}: {kinds} different gradients, {apart:.1e} apart")
assert found["x[indices]"][0] > 1 and found["take"][0] > 1, "CHANGED: they are repeatable"
assert all(found[way][0] == 1 for way in ("embedding", "index_select", "gather")), "CHANGED: these vary too"
alone, wide = gradients("x[indices]", threads=1), gradients("x[indices]", torch.float64)
torch.use_deterministic_algorithms(True)
asked = gradients("x[indices]")
print(f"x[indices] with one thread: {alone[0]}; in float64: {wide[0]}; with deterministic algorithms: {asked[0]}")
assert alone[0] == wide[0] == asked[0] == 1, "CHANGED"
PY
venv/bin/python gradients.py
