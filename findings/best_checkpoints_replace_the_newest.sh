#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, jax 0.10.2: with best_fn the newest checkpoint is deleted as soon as it is written, and a NaN may count as the best.
#
# CheckpointManagerOptions(max_to_keep=2, best_fn=..., best_mode="min") keeps the best checkpoints. Guess: and the newest, from which a stopped job
# goes on; a loss of NaN is the worst; and best_fn=loss means that small is good, or that a mode must be named. Seen:
# 1. Losses 0.1, 0.2, 0.3, 0.4 at steps 1 to 4: save() returns True each time, and steps 1 and 2 are what lies there. latest_step() is 2, so a
#    job that is stopped goes on from step 2, as often as it is started, and never comes further than its next stop.
# 2. best_mode is "max" unless it is named: of losses that fall, 0.4 to 0.1, the two largest are kept and best_step() is step 1.
# 3. Losses NaN, 0.3, NaN: best_step() is 3, a NaN; NaN, 0.3, NaN, 0.4 leave steps 3 and 4, and 0.3 is deleted.
# A second manager without best_fn, in another folder, keeps the newest.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "orbax-checkpoint==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import math
import os

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__)


def kept(name, losses, **mode):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["loss"], **mode)
    with ocp.CheckpointManager(os.path.abspath(name), options=options) as manager:
        for step, loss in enumerate(losses, 1):
            assert manager.save(step, args=ocp.args.StandardSave({"weight": jnp.full(2, loss)}), metrics={"loss": loss})
            manager.wait_until_finished()
        found = manager.all_steps(), manager.latest_step(), manager.best_step()
    print(f"losses {losses}, {mode}: kept {found[0]}, latest {found[1]}, best {found[2]}")
    return found


assert kept("rising", [0.1, 0.2, 0.3, 0.4], best_mode="min") == ([1, 2], 2, 1), "CHANGED"
assert kept("unnamed", [0.4, 0.3, 0.2, 0.1]) == ([1, 2], 2, 1), "CHANGED"
nan = math.nan
assert kept("nan", [nan, 0.3, nan], best_mode="min") == ([2, 3], 3, 3), "CHANGED"
assert kept("lost", [nan, 0.3, nan, 0.4], best_mode="min")[0] == [3, 4], "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
