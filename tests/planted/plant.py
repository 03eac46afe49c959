#!/usr/bin/env python3
"""Plants each bug of plants.py in a copy of the tree, builds, and tells which test finds it.

    git worktree add /tmp/planted && cmake -S /tmp/planted -B /tmp/planted/build ...
    tests/planted/plant.py /tmp/planted --build 'ninja -C build'

See tests/README.md. Ends with 1 if a bug is found by nothing."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from plants import PLANTS


def build(tree, command, program):
    done = subprocess.run(f"{command} {program}", shell=True, cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{program} does not build:\n{done.stdout[-3000:]}")


def find_program(tree, build_folder, program):
    return str(tree / build_folder / "tests" / program)


def run(command, seconds, **settings):
    """What found the bug, or None if everything passed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", SMP_PLAN_CACHE="off", **settings)
    try:
        done = subprocess.run(command, env=environment, text=True, timeout=seconds,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return None
    failed = re.findall(r"\[  FAILED  \] (\S+)", done.stdout)
    verdict = re.findall(r"^([A-Z ]+) \(seed (\d+)\)", done.stdout, re.MULTILINE)
    if verdict:
        return f"{verdict[0][0].lower()}, seed {verdict[0][1]}"
    return failed[0] if failed else f"ended with {done.returncode}"


def look_for(plant, tree, options):
    """The first test that fails."""
    if options.programs > 0:
        build(tree, options.build, "test_fuzz")
        fuzz = find_program(tree, options.folder, "test_fuzz")
        found = run([fuzz, "--source", "fuzz_test"], 900, SMP_FUZZ_PROGRAMS=str(options.programs),
                    SMP_FUZZ_SHRINK="0", SMP_FUZZ_STOP="1")
        if found:
            return "fuzzer: " + found
    for program, tests in plant.tests:
        build(tree, options.build, program)
        job = ["mpirun", "--oversubscribe", "-n", "2"] if program.endswith("_mpi") else []
        found = run([*job, find_program(tree, options.folder, program), f"--gtest_filter={tests}"], 600)
        if found:
            return f"{program}: {found}"
    return None


def try_plant(plant, tree, options):
    source = tree / plant.file
    original = source.read_text()
    if original.count(plant.find) != 1:
        return "cannot be planted: the passage is there %d times" % original.count(plant.find)
    source.write_text(original.replace(plant.find, plant.replace))
    try:
        return look_for(plant, tree, options) or "NOT FOUND"
    except RuntimeError as error:
        return f"cannot be planted: {error}"
    finally:
        source.write_text(original)


def look_at_passages(tree):
    """How many plants no longer find what they change, each on a line."""
    lost = 0
    for plant in PLANTS:
        times = (tree / plant.file).read_text().count(plant.find)
        if times != 1:
            print(f"{plant.name}: the passage is {times} times in {plant.file}; adapt plants.py")
        lost += times != 1
    return min(lost, 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="a copy of the tree, configured; it is changed")
    parser.add_argument("--folder", default="build", help="its build folder")
    parser.add_argument("--build", default="ninja -C build", help="builds the targets after it")
    parser.add_argument("--programs", type=int, default=300, help="for the fuzzer; 0: without it")
    parser.add_argument("--only", default="", help="plants whose name has this in it")
    parser.add_argument("--look", action="store_true",
                        help="only see whether every passage is there, once; the tree is not changed")
    options = parser.parse_args()
    if options.look:
        sys.exit(look_at_passages(options.tree))
    missed = 0
    for plant in PLANTS:
        if options.only not in plant.name:
            continue
        start = time.time()
        result = try_plant(plant, options.tree, options)
        missed += result == "NOT FOUND"
        print(f"{plant.name:45} {plant.file:40} {result}  ({time.time() - start:.0f} s)", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
