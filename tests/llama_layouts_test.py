"""samples/llama: one curve in every layout, and of a job that stops and goes on in another one.

    llama_layouts_test.py WORK LLAMA LAUNCHER...

Trains the tiny Llama in float64, so that what differs is not rounding, and compares what the runs logged.
"""

import json
import pathlib
import shutil
import subprocess
import sys

STEPS = 120
STOP, END = 40, 80
TOLERANCE = 1e-9  # relative; sums of float64 in another order, over 120 steps
COMPARED = ("loss", "gradient_norm", "parameter_norm", "held_out_loss")
EXACT = ("step", "tokens", "learning_rate", "spike")

work, llama, *launcher = sys.argv[1:]
work = pathlib.Path(work)


def train(name, ranks, *flags, steps=STEPS, dtype="float64", evaluate_every=25):
    """Returns what a run on so many ranks logged, a dict a step."""
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [*launcher, "-n", str(ranks), llama, "--size", "tiny", "--dtype", dtype, "--steps", str(steps),
               "--rows", "8", "--micro-rows", "2", "--context", "32", "--decay-steps", "90", "--evaluate-every", str(evaluate_every),
               "--generate", "8", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
    logs = sorted(folder.glob("runs/llama-*/metrics.jsonl"))
    assert len(logs) == 1, f"{name} left {logs}"
    return [json.loads(line) for line in logs[0].read_text().splitlines()], done.stdout


def compare(name, lines, expected):
    assert len(lines) == len(expected), f"{name}: {len(lines)} steps instead of {len(expected)}"
    largest = 0
    for line, other in zip(lines, expected):
        for key in EXACT:
            assert line[key] == other[key], f"{name}, step {line['step']}: {key} is {line[key]}, not {other[key]}"
        for key in COMPARED:
            assert (key in line) == (key in other), f"{name}, step {line['step']}: {key}"
            if key in line:
                largest = max(largest, abs(line[key] - other[key]) / abs(other[key]))
    print(f"{name}: {len(lines)} steps, largest difference {largest:.1e}")
    assert largest < TOLERANCE, name


shutil.rmtree(work, ignore_errors=True)
alone, said = train("alone", 1)
assert "3 steps equal those of one process" in said, said
assert alone[-1]["loss"] < 0.75 * alone[0]["loss"], "it learned nothing"
assert sum("held_out_loss" in line for line in alone) == (STEPS - 1) // 25
for name, ranks, flags in (
    ("pp2", 2, ["--pp", "2"]),
    ("dp2", 2, ["--dp", "2", "--recompute", "none"]),
    ("pp2-dp2", 4, ["--pp", "2", "--smp.shard_optimizer_state", "true"]),
    ("tp2-dp2", 4, ["--tp", "2"]),
):
    compare(name, train(name, ranks, *flags)[0], alone)

train("parts", 2, "--pp", "2", "--checkpoint", "kept", steps=STOP)
lines, said = train("parts", 4, "--pp", "2", "--dp", "2", "--checkpoint", "kept", steps=END)
assert f"resumes after step {STOP} of kept" in said, said
compare("stopped", lines, [line for line in alone[:END]])

# Numbers that are rounded by chance: neither a look at the held-out text nor a stop changes a bit.
short = ("--pp", "2")
expected, _ = train("undisturbed", 2, *short, steps=12, dtype="bfloat16", evaluate_every=0)
train("disturbed", 2, *short, "--checkpoint", "kept", steps=7, dtype="bfloat16", evaluate_every=2)
lines, _ = train("disturbed", 2, *short, "--checkpoint", "kept", steps=12, dtype="bfloat16", evaluate_every=5)
for line, other in zip(lines, expected, strict=True):
    for key in ("loss", "gradient_norm", "parameter_norm"):
        assert line[key] == other[key], f"bfloat16, step {line['step']}: {key} is {line[key]}, not {other[key]}"
assert sum("held_out_loss" in line for line in lines) == 4
print("bfloat16: 12 steps with the same bits")
