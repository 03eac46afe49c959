"""Rows of a result file, as perf/harness/harness.cpp writes them."""

import json
import math
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

LEAST_GFLOPS = 50  # as Report does: next to slow kernels every overhead looks small


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: list[float]) -> float:
    return percentile(values, 0.5)


class Rows:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, metric: str, value: float, unit: str, note: str = "") -> None:
        row = {"metric": metric, "value": value, "unit": unit}
        self.rows.append(row | {"note": note} if note else row)

    def add_samples(self, name: str, samples: list[float], unit: str, note: str = "") -> None:
        known = [sample for sample in samples if not math.isnan(sample)]
        if not known:
            return
        self.add(f"{name}.median", median(known), unit, note)
        self.add(f"{name}.p10", percentile(known, 0.1), unit)
        self.add(f"{name}.p90", percentile(known, 0.9), unit)

    def table(self) -> str:
        width = max((len(row["metric"]) for row in self.rows), default=0)
        line = "{:<{}}  {:>10.4g} {:<2}  {}"
        return "\n".join(
            line.format(row["metric"], width, row["value"], row["unit"], row.get("note", "")) for row in self.rows
        )


def matrix_multiplication_gflops() -> float:
    torch.set_num_threads(1)
    size, best = 1024, 0.0
    a, b = torch.ones(size, size), torch.ones(size, size)
    for _ in range(10):
        start = time.thread_time()
        a.mm(b)
        best = max(best, 2 * size**3 / (time.thread_time() - start) / 1e9)
    return best


def machine(load_before: tuple[float, ...]) -> dict[str, Any]:
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "processor": models[0] if models else "unknown",
        "cores": os.cpu_count(),
        "threads_of_libtorch": 1,
        "matrix_multiplication_gflops": round(matrix_multiplication_gflops()),
        "load_average_before": list(load_before),
        "load_average": list(os.getloadavg()),
    }


def kept_rows(path: Path, parts: list[str], measured: set[str]) -> list[dict[str, Any]]:
    """Of earlier runs, of parts that this one did not measure."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())["rows"]
    stale = tuple(f"{part}." for part in parts)
    return [row for row in earlier if row["metric"] not in measured and not row["metric"].startswith(stale)]


def write(path: Path, rows: Rows, parts: list[str], about: dict[str, Any], versions: dict[str, str]) -> None:
    result = {
        "name": path.stem,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": about,
        "versions": versions,
        "rows": kept_rows(path, parts, {row["metric"] for row in rows.rows}) + rows.rows,
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
