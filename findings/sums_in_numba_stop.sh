#!/usr/bin/env bash
# numba 0.68.1, numpy 2.4.6: the sum of 20 million float32 ones is 16777216 in a compiled function, and their mean 0.84.
#
# numba compiles NumPy's functions as they are. Guess: x.sum() of float32 is as exact as NumPy's, which adds in pairs (or in float64, as numba's sums of
# small integers are widened to int64). Seen of @njit functions that call them:
# 1. sum() and np.sum() add one number after the other in float32: of more than 16,777,216 ones the rest adds nothing. NumPy has 20,000,000.
# 2. mean() is 0.839 for 1. Of 40 million numbers, first ones, then threes, it is 1.678 for 2, and var() 1.104 for 1: what a loader normalises
#    by, or the share of tokens in a mask of float32, is that of the file's first part.
# 3. Where it does not stop it drifts: the mean of 10 million numbers 0.1 is off by 9 %, where NumPy is right to 6 digits.
# x.astype(np.float64) before, or an accumulator of float64 in a loop of one's own, is right.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "numba==0.68.1" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import numba
import numpy as np

print("numba", numba.__version__, "numpy", np.__version__)


@numba.njit
def of_method(values):
    return values.sum()


@numba.njit
def of_function(values):
    return np.sum(values)


@numba.njit
def mean(values):
    return values.mean()


@numba.njit
def variance(values):
    return values.var()


ones = np.ones(20_000_000, np.float32)
print("sum of ones:", of_method(ones), of_function(ones), "numpy", ones.sum(), "as float64", of_method(ones.astype(np.float64)))
assert of_method(ones) == of_function(ones) == 16777216 and ones.sum() == of_method(ones.astype(np.float64)) == 20_000_000, "CHANGED"
print("mean of ones:", mean(ones), "numpy", ones.mean())
assert abs(mean(ones) - 0.8389) < 1e-3 and ones.mean() == 1, "CHANGED"
halves = np.repeat(np.array([1, 3], np.float32), 20_000_000)
print("ones, then threes: mean", mean(halves), "variance", variance(halves), "numpy", halves.mean(), halves.var())
assert abs(mean(halves) - 1.678) < 1e-2 and abs(variance(halves) - 1.104) < 1e-2 and halves.mean() == 2 and halves.var() == 1, "CHANGED"
tenths = np.full(10_000_000, 0.1, np.float32)
print("tenths: mean", mean(tenths), "numpy", tenths.mean())
assert abs(mean(tenths) - 0.1) > 5e-3 and abs(tenths.mean() - 0.1) < 1e-6, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
