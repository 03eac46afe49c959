#!/usr/bin/env bash
# datasets 5.2.0, torch 2.13.0+cpu: skip() and take() of a stream split it anew for each number of workers and ranks, so validation rows are trained on.
#
# A stream (IterableDataset) is split by stream.take(n) for validation and stream.skip(n) for training, or by an index, filter(...,
# with_indices=True). Guess: what the two hold is fixed by the stream; workers and split_dataset_by_node() deal it. Seen of 100 rows in 4 shards:
# 1. take(20) read in the main process has rows 0 to 19; skip(20) read by two workers of a DataLoader, or on two ranks, has 80 rows too, among
#    them 10 to 19 of the former: n is dealt to the readers, and each takes or leaves out its part of its own shards.
# 2. filter(i % 10 == 0) has rows 0, 10, 20, 30, ..., 90 in one process, and 0, 10, 20, 25, 35, ... with two workers or on two ranks: each counts
#    from 0. So training by i % 10 != 0 with two workers reads five of the ten rows that one process holds out.
# 3. map(..., with_indices=True) gives two rows the same index with two workers.
# 4. On three ranks, which do not divide the 4 shards, the split is that of one process. Nothing tells which it is.
# A split by something in the row, or into two streams of files, holds.
#
# Fails if it changes. Takes one to five minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "datasets==5.2.0" "torch==2.13.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import datasets
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

print("datasets", datasets.__version__, "torch", torch.__version__)
stream = datasets.Dataset.from_dict({"row": list(range(100))}).to_iterable_dataset(num_shards=4)


def by_workers(part, workers):
    return sorted(each["row"] for each in DataLoader(part, batch_size=None, num_workers=workers))


def by_ranks(part, ranks):
    return sorted(each["row"] for rank in range(ranks) for each in split_dataset_by_node(part, rank, ranks))


validation, training = stream.take(20), stream.skip(20)
held_out = by_workers(validation, 0)
assert held_out == by_ranks(validation, 1) == list(range(20)) and by_workers(training, 0) == list(range(20, 100)), "CHANGED"
for name, rows in ("two workers", by_workers(training, 2)), ("two ranks", by_ranks(training, 2)), ("three ranks", by_ranks(training, 3)):
    both = sorted(set(rows) & set(held_out))
    print(f"skip(20) read by {name}: {len(rows)} rows, of those that take(20) has in one process: {both}")
    assert len(rows) == 80 and len(both) == (0 if name == "three ranks" else 10), "CHANGED"

validation = stream.filter(lambda each, i: i % 10 == 0, with_indices=True)
training = stream.filter(lambda each, i: i % 10 != 0, with_indices=True)
tenths = by_workers(validation, 0)
assert tenths == list(range(0, 100, 10)), "CHANGED"
print("i % 10 == 0: one process", tenths, "two workers", by_workers(validation, 2), "two ranks", by_ranks(validation, 2))
assert by_workers(validation, 2) == by_ranks(validation, 2) == [0, 10, 20, 25, 35, 45, 55, 65, 80, 90], "CHANGED"
assert by_ranks(validation, 3) == tenths, "CHANGED"
leaked = sorted(set(by_workers(training, 2)) & set(tenths))
print("i % 10 != 0 read by two workers has, of the tenths of one process:", leaked)
assert leaked == [30, 40, 50, 60, 70], "CHANGED"

numbered = stream.map(lambda each, i: {"index": i}, with_indices=True)
for workers in 0, 2:
    indices = [each["index"] for each in DataLoader(numbered, batch_size=None, num_workers=workers)]
    print(f"map with {workers} workers: {len(indices)} rows, {len(set(indices))} different indices")
    assert len(indices) == 100 and len(set(indices)) == (50 if workers else 100), "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
