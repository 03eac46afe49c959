#!/usr/bin/env python3
"""build_time.py BUILD_FOLDER: what a cold build took, as rows of perf/results/build.json.

Reads the log that ninja keeps: seconds of each job, which add up to the same on any number of cores as long as nothing
else runs. What was compiled several times counts by its last time; without ccache, or with an empty one, for a cold build:

    CCACHE_DISABLE=1 ./smp build && perf/build_time.py build/release
"""
import pathlib
import subprocess
import sys

from result_file import write_result


def read_jobs(folder):
    """{output: (begin, end, command)} in milliseconds; a job with several outputs has the same value for each."""
    jobs = {}
    for line in (folder / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, command = line.split("\t")
        jobs[output] = (int(begin), int(end), command)
    return jobs


def seconds(jobs):
    return sum(end - begin for begin, end, _ in set(jobs)) / 1000


def part_of(output):
    if "smp_torch_headers" in output:
        return "headers"
    first = output.split("/")[0]
    return first if first in ("samples", "perf", "tests") else "library"


def needed_by(folder, target):
    found = subprocess.run(["ninja", "-C", folder, "-t", "inputs", target], capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"{folder} has no target {target}: {found.stderr.strip()}")
    return set(found.stdout.split("\n")) | {target}


def measure(folder):
    jobs = read_jobs(folder)
    parts = {"headers": [], "library": [], "samples": [], "perf": [], "tests": []}
    for output, job in jobs.items():
        parts[part_of(output)].append(job)
    demo = needed_by(folder, "t5")
    quick = needed_by(folder, "smp_quick_tests") - demo
    rows = [("all.job_seconds", seconds(jobs.values()), "everything that ./smp build builds")]
    notes = {"headers": "LibTorch's, parsed once for all", "library": "with its tool"}
    rows += [(f"{name}.job_seconds", seconds(found), notes.get(name, "")) for name, found in parts.items()]
    rows.append(("demo.job_seconds", seconds(j for o, j in jobs.items() if o in demo), "what ./smp demo waits for"))
    rows.append(("quick_tests.job_seconds", seconds(j for o, j in jobs.items() if o in quick),
                 "what ./smp test builds after ./smp demo"))
    return [{"metric": metric, "value": round(value, 1), "unit": "s", "note": note} for metric, value, note in rows]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = measure(pathlib.Path(sys.argv[1]).resolve())
    compiler = subprocess.run(["c++", "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    for row in rows:
        print(f"{row['metric']:26} {row['value']:8.1f} {row['unit']}  {row['note']}")
    write_result("build", rows, {"compiler": compiler})


if __name__ == "__main__":
    main()
