#!/usr/bin/env bash
# tensorboard 2.21.0, tbparse 0.0.9, numpy 2.4.6: of a curve of 20,000 steps the reader hands out 10,000, and of a restarted job both halves.
#
# EventAccumulator(folder).Reload().Scalars(tag) is how a program reads a curve out of TensorBoard's files. Guess: it hands out what was written, in
# float32; thinning out is for the page. And of a job that went on from step 50 it has each step once, as it discards orphaned events
# (purge_orphaned_data=True). Seen:
# 1. 20,000 losses are written, 10,000 read: a random sample, with gaps of a dozen steps; which ones depends on the number of points alone, and it
#    does not begin with step 0. A mean over them is near, a comparison with another run "at equal steps" meets other steps. 10,000 losses are all
#    there, so a short test shows nothing.
# 2. size_guidance={SCALARS: 0} reads all 20,000.
# 3. Steps 0 to 99, a stop, and steps 50 to 149 in a second file of the same folder: steps 50 to 99 are read twice, with both values; so they are by
#    tbparse.SummaryReader, which reads all points otherwise. The mean of the curve counts both.
# 4. Counts of tokens are rounded: 17,000,000,500 is 17,000,000,512.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "tensorboard==2.21.0" "tbparse==0.0.9" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >curve.py <<'PY'
import importlib.metadata
from collections import Counter

import numpy as np
from tbparse import SummaryReader
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorboard", "tbparse", "numpy")))


def write(folder, steps, value, began=0.0, suffix=""):
    writer = EventFileWriter(folder, filename_suffix=suffix)
    for step in steps:
        scalar = Summary.Value(tag="loss", simple_value=value(step))
        writer.add_event(Event(step=step, wall_time=1.8e9 + began + step, summary=Summary(value=[scalar])))
    writer.close()


def read(folder, **options):
    return event_accumulator.EventAccumulator(folder, **options).Reload().Scalars("loss")


write("short", range(10_000), float)
write("long", range(20_000), float)
write("alike", range(20_000), lambda step: 1.0)
assert len(read("short")) == 10_000
steps = [event.step for event in read("long")]
gap = int(np.diff(steps).max())
print(f"20,000 written: {len(steps)} read, from step {steps[0]} to {steps[-1]}, the first ones {steps[:8]}, gaps up to {gap}")
assert len(set(steps)) == len(steps) == 10_000 and gap > 8 and steps[0] != 0, "CHANGED"
assert [event.step for event in read("alike")] == steps == [event.step for event in read("long")], "CHANGED: another sample"
whole = read("long", size_guidance={event_accumulator.SCALARS: 0})
print(f"size_guidance of 0: {len(whole)} read; tbparse: {len(SummaryReader('long').scalars)}")
assert len(whole) == len(SummaryReader("long").scalars) == 20_000, "CHANGED"

write("job", range(100), lambda step: 1.0, suffix=".1")
write("job", range(50, 150), lambda step: 3.0, began=1000.0, suffix=".2")
for name, points in (("EventAccumulator", [(event.step, event.value) for event in read("job", purge_orphaned_data=True)]),
                     ("tbparse", list(SummaryReader("job").scalars[["step", "value"]].itertuples(index=False, name=None)))):
    counts = Counter(step for step, _ in points)
    mean = float(np.mean([value for _, value in points]))
    print(f"restarted at step 50, {name}: {len(points)} points of {len(counts)} steps, step 60 has {sorted(v for s, v in points if s == 60)}, mean {mean:.3f}")
    assert len(points) == 200 and len(counts) == 150 and counts[60] == 2, f"CHANGED: {name}"
write("tokens", [1], lambda step: 17_000_000_500.0)
print("17000000500 tokens are", read("tokens")[0].value)
assert read("tokens")[0].value == 17_000_000_512.0, "CHANGED"
PY
venv/bin/python curve.py 2>err.log || { cat err.log; exit 1; }
