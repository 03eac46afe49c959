"""What the Python programs of this folder write beside their rows."""
import datetime
import json
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def write_result(name, rows, versions=None):
    """Writes perf/results/NAME.json, or NAME.json in $SMP_PERF_RESULTS."""
    version = re.search(r"project\(smp VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    result = {
        "name": name,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "load_average": os.getloadavg()},
        "versions": {**(versions or {}), "smp": version},
        "rows": rows,
    }
    folder = pathlib.Path(os.environ.get("SMP_PERF_RESULTS", ROOT / "perf" / "results"))
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
