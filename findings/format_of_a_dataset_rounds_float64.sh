#!/usr/bin/env bash
# datasets 5.2.0, numpy 2.4.6, pyarrow 26.0.1: map() under with_format("numpy") writes float64 columns back as float32 numbers, and still calls them float64.
#
# with_format("numpy") or ("torch") says as what rows are handed out. Guess: a column of float64 comes as float64, as integers and text come
# as they are; and map() that returns a column unchanged leaves it unchanged. Seen, with nothing said:
# 1. Lists, arrays and whole columns of float64 are handed out as float32, of uint16 and int8 as int64, of float16 as float32. A time of today,
#    1767225600.125, is 1767225600.0, and times are 128 seconds coarse; 16777217 is 16777216, and 1e-50 is 0. One row's float64 number is kept by
#    "numpy" and rounded by "torch".
# 2. map(lambda row: {"x": row["x"]}) under either format stores the rounded numbers, in a column whose type is float64 as before. batched=True
#    rounds single numbers, too. Columns that map() does not return are untouched.
# 3. A new column that is a copy is float32; of uint16 it is int64, which is four times as large on a disk.
# 4. set_format("numpy", dtype=np.float64) keeps all digits.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "datasets==5.2.0" "numpy==2.4.6" "pyarrow==26.0.1" "torch==2.13.0" 2>pip.log || { cat pip.log; exit 1; }

cat >rounds.py <<'PY'
import importlib.metadata

import datasets
import numpy as np
from datasets import Dataset, Features, List, Value

datasets.disable_progress_bars()
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("datasets", "numpy", "pyarrow", "torch")))
TIME, ROUNDED = 1767225600.125, 1767225600.0


def made(kind, value):
    return Dataset.from_dict({"x": [value]}, features=Features({"x": kind}))


def raw(dataset, name="x"):
    return dataset.with_format(None)[0][name]


wide = made(List(Value("float64")), [TIME, 16777217.0, 1e-50])
for form in ("numpy", "torch"):
    dataset = wide.with_format(form)
    row = dataset[0]["x"]
    mapped = dataset.map(lambda row: {"x": row["x"], "copy": row["x"]})
    print(f"{form}: {row.dtype}, {row.tolist()}; mapped {raw(mapped)}, called {mapped.features['x'].feature.dtype}; a copy is {mapped.features['copy'].feature.dtype}")
    assert str(row.dtype).endswith("float32") and row.tolist() == [ROUNDED, 16777216.0, 0.0], "CHANGED"
    assert raw(mapped) == row.tolist() and mapped.features["x"] == wide.features["x"], "CHANGED: map() keeps the numbers"
    assert mapped.features["copy"].feature.dtype == "float32", "CHANGED"
    other = dataset.map(lambda row: {"length": 3})
    assert raw(other)[0] == TIME, "CHANGED: a column that is not returned is rounded"

    one = made(Value("float64"), TIME).with_format(form)
    kept = form == "numpy"
    single, batched = raw(one.map(lambda row: {"x": row["x"]})), raw(one.map(lambda rows: {"x": rows["x"]}, batched=True))
    print(f"{form}, one number: {one[0]['x']!r}, mapped {single}, in a batch {batched}, as a column {one[:]['x'].dtype}")
    assert (single == TIME) == kept and batched == ROUNDED and str(one[:]["x"].dtype).endswith("float32"), "CHANGED"

    for kind in ("uint16", "int8", "float16"):
        small = made(List(Value(kind)), [1, 2])
        copied = small.with_format(form).map(lambda row: {"copy": row["x"]}).features["copy"].feature.dtype
        print(f"{form}, {kind}: handed out as {small.with_format(form)[0]['x'].dtype}, a copy is {copied}")
        assert copied == ("float32" if kind == "float16" else "int64"), "CHANGED"
wide.set_format("numpy", dtype=np.float64)
assert raw(wide.map(lambda row: {"x": row["x"]})) == [TIME, 16777217.0, 1e-50]
print("set_format with a dtype:", raw(wide.map(lambda row: {"x": row["x"]})))
PY
venv/bin/python rounds.py 2>err.log || { cat err.log; exit 1; }
