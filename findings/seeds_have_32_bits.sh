#!/usr/bin/env bash
# torch 2.13.0+cpu: a CPU generator uses the lower 32 bits of its seed only, and reports all 64.
#
# manual_seed takes 64 bits, initial_seed() gives them back. Guess: two different seeds are two different streams, so that a job may
# put the rank, the epoch or the microbatch into the upper half: seed + (rank << 32). Seen:
# 1. Seeds that are equal modulo 2**32 give the same numbers: rand, randn, randperm, dropout masks; so all of those ranks draw alike.
# 2. initial_seed() differs between them all the same, and the states compare unequal, as the seed is in them.
# 3. Negative seeds are taken modulo 2**64 first: -1 draws what 2**32 - 1 draws.
# 4. A DataLoader's random sampler, given such generators, orders the data alike.
# What reaches the generator can be folded before (a hash of seed and rank), or added to the lower half.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >seeds.py <<'PY'
import torch

print("torch", torch.__version__)


def draws(seed):
    torch.manual_seed(seed)
    numbers = [torch.rand(100), torch.randn(100), torch.randperm(100), torch.dropout(torch.ones(100), 0.5, True)]
    generator = torch.Generator().manual_seed(seed)
    sampler = torch.utils.data.RandomSampler(range(100), generator=generator)
    return numbers + [torch.tensor(list(sampler))], torch.initial_seed(), torch.Generator().manual_seed(seed).get_state()


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one[0], other[0]))


first = draws(7)
assert not equal(first, draws(8))
for rank in (1, 2, 1000):
    later = draws(7 + (rank << 32))
    print(f"seed 7 and 7 + ({rank} << 32): equal numbers {equal(first, later)}, initial_seed {first[1]} and {later[1]},",
          f"equal states {torch.equal(first[2], later[2])}")
    assert equal(first, later) and first[1] != later[1] and not torch.equal(first[2], later[2]), "CHANGED: all bits count"
print("seed -1 and 2**32 - 1:", equal(draws(-1), draws(2**32 - 1)))
assert equal(draws(-1), draws(2**32 - 1)), "CHANGED"
PY
venv/bin/python seeds.py
