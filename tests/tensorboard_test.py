"""tensorboard_test.py RUNS: TensorBoard's own reader finds the numbers of the last run in the folder RUNS. Skipped (77)
where it is not installed."""

import json
import math
import pathlib
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ModuleNotFoundError as error:
    if error.name != "tensorboard":
        raise
    print("skipped: TensorBoard is not installed; .ci/run installs it")
    sys.exit(77)

run = sorted(pathlib.Path(sys.argv[1]).glob("demo-*"))[-1]
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
events = EventAccumulator(str(run)).Reload()
names = events.Tags()["scalars"]
assert lines and set(names) == set(lines[0]) - {"step"}, (names, lines[:1])
for name in names:
    points = events.Scalars(name)
    assert [point.step for point in points] == [line["step"] for line in lines], name
    for point, line in zip(points, lines):
        assert math.isclose(point.value, line[name], rel_tol=1e-6), (name, point, line)
        assert point.wall_time > 1.7e9, point
print(f"{len(lines)} steps, {len(names)} curves")
