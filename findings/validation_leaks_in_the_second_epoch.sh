#!/usr/bin/env bash
# grain 0.2.18: a split of a shuffled data set is another split in each epoch, so validation data are trained on from the second epoch on.
#
# MapDatasets of grain (JAX's loader) are shuffled by shuffle(), cut like lists, ds[:80] and ds[80:], and read again by repeat(). Guess: the
# cut is made once; later epochs are other orders of the same rows. Seen of 100 rows, of which 80 are for training:
# 1. ds.shuffle(seed=0)[:80].repeat(5) has 80 rows of its own in epoch 1, and over five epochs all 100: each later epoch has 14 to 17 of the
#    20 rows of ds.shuffle(seed=0)[80:]. repeat() hands the number of the epoch up to shuffle(), which shuffles all 100 anew before the cut.
#    list() of the split without repeat(), which is one epoch, shows nothing.
# 2. The same cut for ranks, ds.shuffle(seed=0)[rank::2].repeat(), is right: together they read each row once an epoch.
# 3. repeat(reseed_each_epoch=False) keeps the split, with one order for all epochs; ds[:80].shuffle(seed=0), cut first and shuffled
#    then, keeps it too.
#
# Fails if it changes. Takes about a minute, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "grain==0.2.18" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >split.py <<'PY'
import importlib.metadata

import grain

print("grain", importlib.metadata.version("grain"))
ROWS, TRAINED, EPOCHS = 100, 80, 5
source = grain.MapDataset.source(list(range(ROWS)))
shuffled = source.shuffle(seed=0)
validation = set(shuffled[TRAINED:])
assert len(validation) == ROWS - TRAINED and not validation & set(shuffled[:TRAINED])


def leaked(name, training):
    """How many rows of validation each epoch reads, and how many rows are read in all epochs together."""
    rows = list(training)
    epochs = [rows[first:first + TRAINED] for first in range(0, len(rows), TRAINED)]
    found = [len(validation & set(epoch)) for epoch in epochs]
    print(f"{name}: rows of validation in each epoch {found}, rows read in all {len(set(rows))}, orders {len({tuple(epoch) for epoch in epochs})}")
    return found


assert len(shuffled[:TRAINED]) == TRAINED and not validation & set(list(shuffled[:TRAINED]))
found = leaked("shuffle()[:80].repeat(5)", shuffled[:TRAINED].repeat(EPOCHS))
assert found[0] == 0 and min(found[1:]) > 0, "CHANGED: the split is kept"
assert len(set(shuffled[:TRAINED].repeat(EPOCHS))) == ROWS, "CHANGED: the split is kept"
kept = leaked("shuffle()[:80].repeat(5, reseed_each_epoch=False)", shuffled[:TRAINED].repeat(EPOCHS, reseed_each_epoch=False))
assert not any(kept)
cut = list(source[:TRAINED].shuffle(seed=0).repeat(EPOCHS))
assert set(cut) == set(range(TRAINED))
ranks = [list(shuffled[rank::2].repeat(EPOCHS)) for rank in range(2)]
for epoch in range(EPOCHS):
    both = [row for rows in ranks for row in rows[epoch * ROWS // 2:(epoch + 1) * ROWS // 2]]
    assert sorted(both) == list(range(ROWS)), "CHANGED: ranks do not share an epoch"
print("[:80].shuffle() keeps the split; [rank::2] of two ranks is each row once an epoch")
PY
venv/bin/python split.py 2>err.log || { cat err.log; exit 1; }
