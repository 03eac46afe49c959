#!/usr/bin/env bash
# grain 0.2.18: random_map() behind a slice for the rank draws the same random numbers on every rank.
#
# A pipeline of grain (JAX's loader) deals rows by ds[rank::ranks] and masks tokens or crops images by random_map(), whose generator grain seeds.
# Guess: each row has numbers of its own, as in grain.DataLoader with ShardOptions, which seeds by the row's place in the whole. Seen of 12 rows:
# 1. ds.seed(0)[rank::2].random_map(f): both ranks draw the same six numbers, row k of rank 0 that of row k of rank 1. A global batch has each
#    mask as often as there are ranks, so fewer of them, and another number of ranks trains on other ones.
# 2. So do ds.seed(0).shuffle()[rank::2].random_map(f), and random_map() behind to_iter_dataset(), in each epoch anew, as the generator is made of the
#    seed, the place in the pipeline and the place in the rank's own part.
# 3. random_map() before the slice gives all rows numbers of their own, the same ones for any number of ranks; so does a seed of each rank's,
#    ds.seed(rank), if nothing is shuffled; so does grain.DataLoader.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "grain==0.2.18" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
from importlib.metadata import version

import grain

print("grain", version("grain"))
ROWS, RANKS = 12, 2


def drawn(row, generator):
    return int(row), int(generator.integers(1_000_000))


class Drawn(grain.transforms.RandomMap):
    def random_map(self, row, generator):
        return drawn(row, generator)


rows = grain.MapDataset.range(ROWS).seed(0)


def by_loader(rank):
    options = grain.sharding.ShardOptions(rank, RANKS)
    sampler = grain.samplers.IndexSampler(ROWS, shard_options=options, shuffle=False, num_epochs=1, seed=0)
    return grain.DataLoader(data_source=grain.MapDataset.range(ROWS), sampler=sampler, operations=[Drawn()], worker_count=0)


alike = {
    "slice, random_map": lambda rank: rows[rank::RANKS].random_map(drawn),
    "shuffle, slice, random_map": lambda rank: rows.shuffle()[rank::RANKS].random_map(drawn),
    "slice, to_iter_dataset, random_map": lambda rank: rows[rank::RANKS].to_iter_dataset().random_map(drawn),
    "slice, random_map, two epochs": lambda rank: rows[rank::RANKS].random_map(drawn).repeat(2),
}
own = {
    "random_map, slice": lambda rank: rows.random_map(drawn)[rank::RANKS],
    "seed(rank), slice, random_map": lambda rank: grain.MapDataset.range(ROWS).seed(rank)[rank::RANKS].random_map(drawn),
    "DataLoader": by_loader,
}
for name, make in {**alike, **own}.items():
    ranks = [list(make(rank)) for rank in range(RANKS)]
    numbers = [[number for _, number in part] for part in ranks]
    different = len({number for part in numbers for number in part})
    print(f"{name}: rank 0 {ranks[0][:3]}, rank 1 {ranks[1][:3]}: {different} different numbers for {sum(map(len, ranks))} rows")
    assert {row for part in ranks for row, _ in part} == set(range(ROWS)), "CHANGED"
    if name in alike:
        assert numbers[0] == numbers[1] and different == len(numbers[0]), f"CHANGED: {name}"
    else:
        assert different == ROWS, f"CHANGED: {name}"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
