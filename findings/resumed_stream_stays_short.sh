#!/usr/bin/env bash
# datasets 5.2.0, torchdata 0.11.0, torch 2.13.0+cpu: a stream that was resumed once begins at that place in every epoch.
#
# IterableDataset.load_state_dict() goes on within an epoch. Guess: the next epoch begins at the beginning, and set_epoch() matters to those who
# shuffle. Seen of 40 rows in 4 shards, not shuffled, saved behind 14:
# 1. list(dataset) after load_state_dict() gives the last 26 rows, and so does every further list(dataset): rows 0 to 13 are not read again.
# 2. In a StatefulDataLoader without workers it is the same: every epoch after a resume has 13 batches for 20. With a worker later epochs are
#    whole, since the copy of the dataset in the worker forgets.
# 3. set_epoch() with another number than the saved one ends it. But it also turns the order of the shards, although nothing was shuffled:
#    epoch 2 begins with row 30.
# The rest of the interrupted epoch is right in all cases.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "torchdata==0.11.0" "datasets==5.2.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >stream.py <<'PY'
import datasets
import torch
import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader


def stream():
    return datasets.Dataset.from_dict({"row": list(range(40))}).to_iterable_dataset(num_shards=4)


def rows(batches):
    return [int(row) for batch in batches for row in torch.as_tensor(batch["row"]).reshape(-1)]


def later(make, taken):
    """Three epochs after a resume, and what was left of the epoch in which the state was saved."""
    first = make()
    running = iter(first)
    for _ in range(taken):
        next(running)
    state, rest = first.state_dict(), rows(running)
    resumed = make()
    resumed.load_state_dict(state)
    epochs = []
    for _ in range(3):
        epochs.append(rows(resumed))
    return epochs, rest


if __name__ == "__main__":
    print("torch", torch.__version__, "torchdata", torchdata.__version__, "datasets", datasets.__version__)
    cases = {
        "dataset alone": (stream, 14, 26),
        "loader without workers": (lambda: StatefulDataLoader(stream(), batch_size=2, num_workers=0), 7, 26),
        "loader with one worker": (lambda: StatefulDataLoader(stream(), batch_size=2, num_workers=1), 7, 40),
    }
    for name, (make, taken, length) in cases.items():
        epochs, rest = later(make, taken)
        print(f"{name}: rows of three epochs after the resume {[len(epoch) for epoch in epochs]}, the first of each {[epoch[0] for epoch in epochs]}")
        assert epochs[0] == rest == list(range(14, 40))
        assert [len(epoch) for epoch in epochs] == [26, length, length], "CHANGED: later epochs"

    dataset, orders = stream(), []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        orders.append(rows(dataset))
    print("set_epoch without shuffle: first rows of epochs 0 to 3:", [order[0] for order in orders])
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[0] == list(range(40)) and orders[2][0] == 30, "CHANGED: the order stays"
PY
venv/bin/python stream.py 2>err.log || { cat err.log; exit 1; }
