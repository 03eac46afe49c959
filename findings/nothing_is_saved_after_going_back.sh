#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, jax 0.10.2: a job that went back to an older checkpoint saves nothing until it has passed the newest one.
#
# CheckpointManager numbers checkpoints by steps. A loss that went up is a reason to go back: restore(10) where 10 and 20 lie there, and train on.
# Guess: step 12 is saved, or save() raises, as later steps are there; and what is saved at step 20 replaces the old 20. Seen:
# 1. save() of steps 12, 15 and 20 returns False and does nothing; no log at the usual level, no warning. Step 21 is the next one that is saved.
# 2. latest_step() is 20 all the time, so a job that is stopped meanwhile goes on from the old step 20, the one that was fled from.
# 3. save(force=True) writes 12, and for this manager 12 is the latest then; for that of the next process it is 20. Step 20 is refused, by an error.
# delete(20) after restore(10) makes all of it right.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "orbax-checkpoint==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import os

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__)


def save(manager, step, value, force=False):
    done = manager.save(step, args=ocp.args.StandardSave({"weight": jnp.full(2, value)}), force=force)
    manager.wait_until_finished()
    return done


def restore(manager, step):
    return manager.restore(step, args=ocp.args.StandardRestore({"weight": jnp.zeros(2)}))["weight"].tolist()


def gone_back(name):
    manager = ocp.CheckpointManager(os.path.abspath(name), options=ocp.CheckpointManagerOptions(max_to_keep=5))
    assert save(manager, 10, 10.0) and save(manager, 20, 20.0) and restore(manager, 10) == [10, 10]
    return manager


with gone_back("as_it_is") as manager:
    done = {step: save(manager, step, step + 0.5) for step in (12, 15, 20)}
    print("saved after going back to 10:", done, "latest", manager.latest_step(), restore(manager, manager.latest_step()))
    assert not any(done.values()) and manager.latest_step() == 20 and restore(manager, 20) == [20, 20], "CHANGED"
    assert save(manager, 21, 21.5) and manager.all_steps() == [10, 20, 21], "CHANGED"
    print("then 21:", manager.all_steps())
with gone_back("forced") as manager:
    assert save(manager, 12, 12.5, force=True), "CHANGED"
    try:
        save(manager, 20, 20.5, force=True)
        raise SystemExit("CHANGED: 20 is written twice")
    except ocp.checkpoint_manager.StepAlreadyExistsError as error:
        print("forced:", manager.all_steps(), "latest", manager.latest_step(), type(error).__name__)
with ocp.CheckpointManager(os.path.abspath("forced")) as manager:
    print("opened again:", "latest", manager.latest_step())
    assert manager.latest_step() == 20, "CHANGED"
with gone_back("deleted") as manager:
    manager.delete(20)
    assert save(manager, 12, 12.5) and manager.latest_step() == 12, "CHANGED"
    print("20 deleted:", manager.all_steps())
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
