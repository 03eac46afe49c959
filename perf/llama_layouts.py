#!/usr/bin/env python3
"""llama_layouts.py BUILD_FOLDER [STEPS]: one training run in five layouts, on 1, 2, 4 and 8 ranks, and one more that
goes on in another of them after each fifth. Writes the curve, and how far the losses of each run are from those of one
rank, to perf/results/llama_layouts.json.

The Llama is samples/llama's `tiny` in float64, where what remains of a difference is an error and not its growth over
two thousand steps. Equal losses say that the same tokens were seen: each row of text has another loss.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from result_file import write_result

LAYOUTS = {  # name: (ranks, flags)
    "one_rank": (1, ["--pp", "1"]),
    "pp2": (2, ["--pp", "2"]),
    "tp2": (2, ["--tp", "2"]),
    "pp2_dp2": (4, ["--pp", "2", "--dp", "2"]),
    "pp2_tp2_dp2": (8, ["--pp", "2", "--tp", "2", "--dp", "2"]),
}
LIMIT_SECONDS = 3600  # of a run
CURVE_STEPS = 100  # that a point of the curve is the mean of
LARGEST = 1e-9  # difference that other orders of adding in float64 may make


def run(program, layout, steps, folder, more=()):
    ranks, flags = LAYOUTS[layout]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, "--size", "tiny", *flags,
               "--dtype", "float64", "--steps", str(steps), "--check", "0", "--generate", "0", *more]
    environment = dict(os.environ, OMP_NUM_THREADS="1", SMP_PLAN_CACHE="off")
    try:
        found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                               timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        sys.exit(f"{layout}: not done after {LIMIT_SECONDS} s")
    if found.returncode != 0:
        sys.exit(f"{layout} ended with {found.returncode}:\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}")


def losses_in(folder):
    """Losses by step, of the one run in `folder`."""
    files = list(folder.glob("runs/*/metrics.jsonl"))
    if len(files) != 1:
        sys.exit(f"{folder} holds {len(files)} runs, not one")
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def losses_of(program, layout, steps):
    with tempfile.TemporaryDirectory() as folder:
        run(program, layout, steps, folder)
        return losses_in(pathlib.Path(folder))


def losses_of_changing(program, steps):
    """Of a job that begins on one rank and goes on in the layouts, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        for index, layout in enumerate(LAYOUTS):
            last = steps * (index + 1) // len(LAYOUTS)
            run(program, layout, last, folder, ["--checkpoint", "saved"])
        return losses_in(pathlib.Path(folder))


def largest_difference(losses, reference):
    if losses.keys() != reference.keys():
        sys.exit(f"{len(losses)} steps, where one rank has {len(reference)}")
    return max(abs(loss - reference[step]) / abs(reference[step]) for step, loss in losses.items())


def rows_of(reference, differences):
    rows = []
    for first in range(1, len(reference) + 1, CURVE_STEPS):
        steps = [step for step in range(first, first + CURVE_STEPS) if step in reference]
        mean = sum(reference[step] for step in steps) / len(steps)
        rows.append({"metric": f"loss.steps_{steps[0]}_to_{steps[-1]}", "value": mean, "unit": "nats a token"})
    for name, difference in differences.items():
        rows.append({"metric": f"largest_difference.{name}", "value": difference, "unit": "relative",
                     "note": f"of {len(reference)} losses to those of one rank"})
    return rows


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]).resolve() / "samples" / "llama" / "llama"
    steps = int(sys.argv[2]) if len(sys.argv) == 3 else 2000
    reference = losses_of(program, "one_rank", steps)
    differences = {}
    for layout in LAYOUTS:
        if layout != "one_rank":
            differences[layout] = largest_difference(losses_of(program, layout, steps), reference)
            print(f"{layout}: {differences[layout]:.1e}", flush=True)
    differences["changing"] = largest_difference(losses_of_changing(program, steps), reference)
    print(f"changing: {differences['changing']:.1e}")
    write_result("llama_layouts", rows_of(reference, differences))
    wrong = [name for name, difference in differences.items() if difference > LARGEST]
    if wrong:
        sys.exit(f"not one curve: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
