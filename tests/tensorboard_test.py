"""tensorboard_test.py RUNS: TensorBoard's readers find the numbers of every run in the folder RUNS, each step once: the
accumulator of events, the server in Python (--load_fast=false), and the one that tensorboard starts by default, a program of
its own. Skipped (77) where it is not installed."""

import json
import math
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ModuleNotFoundError as error:
    if error.name != "tensorboard":
        raise
    print("skipped: TensorBoard is not installed; .ci/run installs it")
    sys.exit(77)

SECONDS = 60  # for a server to have read all


def compare(reader, run, name, points, lines):
    """Compares (step, value) pairs with the lines of metrics.jsonl that have the number."""
    lines = [line for line in lines if name in line]
    steps = [step for step, _ in points]
    assert steps == [line["step"] for line in lines], (reader, run, name, steps)
    for (_, value), line in zip(points, lines):
        assert math.isclose(value, line[name], rel_tol=1e-6), (reader, run, name, value, line)


def by_accumulator(run, lines):
    events = EventAccumulator(str(run)).Reload()
    names = events.Tags()["scalars"]
    assert lines and set(names) == set().union(*lines) - {"step"}, (run, names, lines[:1])
    for name in names:
        points = events.Scalars(name)
        compare("EventAccumulator", run, name, [(point.step, point.value) for point in points], lines)
        assert all(point.wall_time > 1.7e9 for point in points), (run, points)


class Server:
    """`tensorboard` on a port of this machine."""

    def __init__(self, runs, load_fast):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), "--host", "127.0.0.1",
             "--port", str(self.port), "--load_fast", load_fast, "--reload_interval", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def points(self, run, name, number):
        """Waits until the server has read `number` points of a curve, or as long as is bearable."""
        query = urllib.parse.urlencode({"run": run, "tag": name})
        url = f"http://127.0.0.1:{self.port}/data/plugin/scalars/scalars?{query}"
        deadline = time.monotonic() + SECONDS
        points = []
        while len(points) < number and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    points = [(step, value) for _, step, value in json.load(answer)]
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.3)
        return points


runs = pathlib.Path(sys.argv[1])
lines_of = {
    file.parent: [json.loads(line) for line in file.read_text().splitlines()]
    for file in sorted(runs.glob("*/metrics.jsonl"))
}
assert lines_of, f"no run in {runs}"
for run, lines in lines_of.items():
    by_accumulator(run, lines)
for load_fast in ("false", "auto"):
    with Server(runs, load_fast) as server:
        for run, lines in lines_of.items():
            points = server.points(run.name, "loss", len(lines))
            compare(f"the server, load_fast={load_fast}", run, "loss", points, lines)
print(f"{len(lines_of)} runs, {sum(map(len, lines_of.values()))} steps, three readers")
