#!/usr/bin/env bash
# pyarrow 26.0.1, polars 2.1.0, numpy 2.4.6: a safe cast of 70000 to float16 is infinity, of integers too.
#
# array.cast(type) of Arrow is safe unless told otherwise, and Series.cast(type) of Polars strict: what does not fit raises. Guess: that holds for
# float16 as for other types, or at least for integers, as int64 16777217 is refused by Arrow's float32, in which it has no place. Seen:
# 1. Arrow: the integers 65520, 70000 and 16777216 become infinity in float16, 2049 becomes 2048. uint32 and int32 are refused from 16777217 on,
#    which is float32's limit; int64 is never refused, and not by float16 only from there.
# 2. Arrow: float64 70000 is infinity in float16 and 1e300 in float32, where 1.5 into int32 and 300 into int8 raise.
# 3. Polars with strict=True: 70000.0 and the integer 70000 are infinity in Float16, 1e300 in Float32; 300 into Int8 raises.
# So a column of weights, norms or lengths that is stored in 16 bits wants a look at its largest number first.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "pyarrow==26.0.1" "polars==2.1.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >casts.py <<'PY'
import math

import numpy as np
import polars as pl
import pyarrow as pa

print("pyarrow", pa.__version__, "polars", pl.__version__, "numpy", np.__version__)
INFINITE, REFUSED = math.inf, None


def arrow(value, source, target):
    try:
        return pa.array([value], source).cast(target)[0].as_py()
    except pa.ArrowInvalid:
        return REFUSED


def polars(value, source, target):
    try:
        return pl.Series([value], dtype=source).cast(target, strict=True)[0]
    except pl.exceptions.InvalidOperationError:
        return REFUSED


half, single = pa.float16(), pa.float32()
for value, source, target, expected in (
    (2049, pa.int16(), half, 2048.0), (2049, pa.int64(), half, 2048.0), (65519, pa.int32(), half, 65504.0),
    (65520, pa.int32(), half, INFINITE), (65520, pa.uint16(), half, INFINITE), (70000, pa.int64(), half, INFINITE),
    (16777216, pa.int32(), half, INFINITE), (16777217, pa.int32(), half, REFUSED), (16777217, pa.uint32(), half, REFUSED),
    (16777217, pa.int64(), half, INFINITE), (16777217, pa.int64(), single, REFUSED), (16777217, pa.int32(), single, REFUSED),
    (70000.0, pa.float64(), half, INFINITE), (70000.0, single, half, INFINITE), (1e300, pa.float64(), single, INFINITE),
    (1.5, pa.float64(), pa.int32(), REFUSED), (300, pa.int64(), pa.int8(), REFUSED),
):
    found = arrow(value, source, target)
    print(f"arrow: {value} of {source} is {'refused' if found is REFUSED else found} in {target}")
    assert found == expected, "CHANGED"
for value, source, target, expected in (
    (2049, pl.Int64, pl.Float16, 2048.0), (70000, pl.Int64, pl.Float16, INFINITE), (70000.0, pl.Float64, pl.Float16, INFINITE),
    (1e300, pl.Float64, pl.Float32, INFINITE), (300, pl.Int64, pl.Int8, REFUSED),
):
    found = polars(value, source, target)
    print(f"polars, strict: {value} of {source} is {'refused' if found is REFUSED else found} in {target}")
    assert found == expected, "CHANGED"
PY
venv/bin/python casts.py 2>err.log || { cat err.log; exit 1; }
