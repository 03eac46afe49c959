#!/usr/bin/env bash
# torchdata 0.11.0, torch 2.13.0+cpu: StatefulDataLoader, resumed: this epoch is right, the next one is not.
#
# state_dict() within an epoch and load_state_dict() in a new process. Guess: the rest of the epoch and all later epochs are those of the run
# that was not stopped, with workers or without. Seen with shuffle=True and a generator of the loader's own:
# 1. With a worker (num_workers=1) the rest and the two epochs behind it are as in the run that was not stopped.
# 2. Without workers (num_workers=0) the rest is right, and the epochs behind it are in another order.
# So a check of "the rest of the epoch" passes, and later epochs differ from those of a job that ran through.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "torchdata==0.11.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >epochs.py <<'PY'
import torch
import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader

print("torch", torch.__version__, "torchdata", torchdata.__version__)


def make(workers):
    return StatefulDataLoader(list(range(12)), batch_size=2, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0))


def epoch(loader):
    return [sample for batch in loader for sample in batch.tolist()]


if __name__ == "__main__":
    for workers in (0, 1):
        through = make(workers)
        epoch(through)
        running = iter(through)
        next(running), next(running)
        state = through.state_dict()
        rest = [sample for batch in running for sample in batch.tolist()]
        later = [epoch(through), epoch(through)]
        resumed = make(workers)
        resumed.load_state_dict(state)
        found = epoch(resumed), [epoch(resumed), epoch(resumed)]
        print(f"{workers} workers: rest {found[0]} for {rest}; next epoch {found[1][0]} for {later[0]}")
        assert found[0] == rest, "CHANGED: the rest differs"
        assert (found[1] == later) == (workers == 1), "CHANGED: later epochs"
PY
venv/bin/python epochs.py 2>err.log || { cat err.log; exit 1; }
