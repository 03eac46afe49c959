#!/usr/bin/env bash
# keras 3.15.1 over torch 2.13.0+cpu: with gradient_accumulation_steps the average of the weights is taken once a microbatch.
#
# use_ema keeps an average of the weights, with a weight of 1 - ema_momentum for each step's; gradient_accumulation_steps makes one step of several
# microbatches. Guess: the average moves when the weights do, so N microbatches instead of one batch change nothing. Seen of SGD at rate 1,
# gradients of 1, ema_momentum 0.9:
# 1. After ten steps the weight is -10 either way, and `iterations` is 10. The average is -4.49 without accumulation and -7.44 with four
#    microbatches, since it moves four times for each step of the weight. With 32 microbatches it is -9.07, nearly the weight of a step before.
# 2. So a recipe that is moved to less memory by accumulation loses its averaging, silently. ema_momentum ** (1 / N) mends most of it.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "keras==3.15.1" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

print("keras", keras.__version__)


def trained(microbatches, momentum=0.9, steps=10):
    weight = keras.Variable(np.zeros(1, "float32"))
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=momentum, gradient_accumulation_steps=microbatches)
    optimizer.build([weight])
    for _ in range(steps * (microbatches or 1)):
        optimizer.apply([keras.ops.convert_to_tensor(np.ones(1, "float32"))], [weight])
    value = keras.ops.convert_to_numpy(weight)[0]
    optimizer.finalize_variable_values([weight])
    return float(value), float(keras.ops.convert_to_numpy(weight)[0]), int(optimizer.iterations)


for microbatches, expected in (None, -4.487), (4, -7.442), (32, -9.068):
    value, average, iterations = trained(microbatches)
    print(f"{microbatches} microbatches: weight {value}, {iterations} iterations, average {average:.3f}")
    assert (value, iterations) == (-10, 10) and abs(average - expected) < 1e-3, "CHANGED"
print("four microbatches, ema_momentum 0.9 ** (1 / 4):", round(trained(4, 0.9**0.25)[1], 3))
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
