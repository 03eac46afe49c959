#!/usr/bin/env bash
# torchmetrics 1.9.0, torch 2.13.0+cpu: two metrics of a MetricCollection that agree on the first batch are one metric from then on.
#
# A collection keeps several metrics over steps and ranks: perplexity with and without ignored labels, say. Guess: metrics with different arguments
# stay different; states are shared where that makes no difference, as the documentation of compute_groups has it. Seen:
# 1. After the first update() states are compared by their values, arguments are not. Perplexity() and Perplexity(ignore_index=0), whose first
#    batch happens to have no label 0, are one group: only the first one of both is updated, and both report its number ever after.
# 2. Accuracy with and without ignore_index likewise, and which one counts depends on their names: the keys of a dict are sorted.
#    With the names exchanged the count without ignored labels is reported twice.
# 3. SumMetric and a subclass of it that counts something else are one as well if the first numbers are equal (a first batch that is full, of
#    rows and of rows that count).
# 4. With compute_groups=False, alone, or if the first batch has an ignored label, all are right. reset() does not end a group.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "torchmetrics==1.9.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import torch
import torchmetrics
from torchmetrics import MetricCollection, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

print("torch", torch.__version__, "torchmetrics", torchmetrics.__version__)
CLASSES = 7
generator = torch.Generator().manual_seed(0)


def batch(ignored):
    """Scores and labels of 4 rows of 8, of which the last three labels of each row are 0 if some are to be ignored."""
    labels = torch.randint(1, CLASSES, (4, 8), generator=generator)
    if ignored:
        labels[:, 5:] = 0
    return torch.randn(4, 8, CLASSES, generator=generator), labels


full_first = [batch(ignored) for ignored in (False, True, True, True)]
ignored_first = full_first[1:] + full_first[:1]


def perplexities(names):
    return {names[0]: Perplexity(), names[1]: Perplexity(ignore_index=0)}


def accuracies(names):
    kept = {"num_classes": CLASSES, "average": "micro"}
    return {names[0]: MulticlassAccuracy(**kept), names[1]: MulticlassAccuracy(ignore_index=0, **kept)}


def seen(make, names, batches, flat=False, reset=False, **options):
    """What a collection reports of all labels, and of those that count."""
    collection = MetricCollection(make(names), **options)
    for repetition in range(1 + reset):
        for scores, labels in batches if not repetition else batches[::-1]:
            collection.update(*((scores.flatten(0, 1), labels.flatten()) if flat else (scores, labels)))
        values = collection.compute()
        collection.reset()
    return tuple(round(values[name].item(), 4) for name in names)


for make, flat in (perplexities, False), (accuracies, True):
    right = seen(make, ("all", "counted"), full_first, flat, compute_groups=False)
    shared = seen(make, ("all", "counted"), full_first, flat)
    renamed = seen(make, ("total", "counted"), full_first, flat)
    again = seen(make, ("all", "counted"), full_first, flat, reset=True)
    other = seen(make, ("all", "counted"), ignored_first, flat)
    print(f"{make.__name__}: alone {right}, in a collection {shared}, by other names {renamed}, after a reset {again}, ignored labels first {other}")
    assert right[0] != right[1] and shared == again == (right[0], right[0]) and renamed == (right[1], right[1]), "CHANGED"
    assert other == right, "CHANGED"


class Counted(SumMetric):
    def update(self, labels):
        super().update((labels != 0).sum())


class Rows(SumMetric):
    def update(self, labels):
        super().update(labels.numel())


for options in {}, {"compute_groups": False}:
    counts = MetricCollection({"all": Rows(), "counted": Counted()}, **options)
    for _, labels in full_first:
        counts.update(labels)
    values = {name: int(value) for name, value in counts.compute().items()}
    print("labels", options, values)
    assert values == {"all": 128, "counted": 92 if options else 128}, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
