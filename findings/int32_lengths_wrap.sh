#!/usr/bin/env bash
# polars 2.1.0, pyarrow 26.0.1, mlx 0.32.4, jax 0.10.2: sums and offsets of int32 lengths wrap around, nothing said.
#
# Token counts of documents are kept as int32; their sum is the size of the corpus, their running sum the offsets of an index. Guess: as in NumPy,
# torch and pandas, which add 32 bits in 64, or an error. Seen of five lengths of 2**30 each, which are 5,368,709,120 together:
#              sum             running sum ends at
# numpy        5368709120      5368709120
# torch        5368709120      5368709120
# pandas       5368709120      5368709120        (3.1.1)
# pyarrow      5368709120      1073741824        cumulative_sum(); of uint8 it wraps at 256. cumulative_sum_checked() raises
# polars       1073741824      1073741824        also by groups; narrower types are added in 64 bits, so only int32 and uint32 wrap
# mlx          1073741824      1073741824
# jax          1073741824      1073741824        whatever is asked of it, until 64 bits are switched on
# So an index made by one of the last four is right for a small corpus and points before its beginning behind 2,147,483,648 tokens.
# Right: cast to int64 first.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "polars==2.1.0" "pyarrow==26.0.1" "mlx[cpu]==0.32.4" "jax[cpu]==0.10.2" \
  "pandas==3.1.1" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch

lengths = np.full(5, 2**30, np.int32)
whole, wrapped = 5 * 2**30, 2**30
series = pl.Series(lengths)
seen = {
    "numpy": (np.sum(lengths), np.cumsum(lengths)[-1]),
    "torch": (torch.tensor(lengths).sum(), torch.tensor(lengths).cumsum(0)[-1]),
    "pandas": (pd.Series(lengths).sum(), pd.Series(lengths).cumsum().iloc[-1]),
    "pyarrow": (pc.sum(pa.array(lengths)).as_py(), pc.cumulative_sum(pa.array(lengths))[-1].as_py()),
    "polars": (series.sum(), series.cum_sum()[-1]),
    "mlx": (mx.sum(mx.array(lengths)).item(), mx.cumsum(mx.array(lengths))[-1].item()),
    "jax": (jnp.sum(jnp.array(lengths)), jnp.cumsum(jnp.array(lengths))[-1]),
}
expected = {"pyarrow": (whole, wrapped), **{name: (wrapped, wrapped) for name in ("polars", "mlx", "jax")}}
for name, (total, offset) in seen.items():
    print(f"{name:8} {int(total):11} {int(offset):11}")
    assert (int(total), int(offset)) == expected.get(name, (whole, whole)), "CHANGED"

by_group = pl.DataFrame({"shard": [0] * 5, "tokens": lengths}).group_by("shard").agg(pl.col("tokens").sum())["tokens"][0]
bytes_ = pc.cumulative_sum(pa.array(np.full(300, 100, np.uint8)))[-1].as_py()
print("polars by groups:", by_group, " pyarrow, 300 times 100 as uint8:", bytes_, " polars, the same:", pl.Series(np.full(300, 100, np.uint8)).cum_sum()[-1])
assert by_group == wrapped and bytes_ == 30_000 % 256 and pl.Series(np.full(300, 100, np.uint8)).cum_sum()[-1] == 30_000, "CHANGED"
try:
    pc.cumulative_sum_checked(pa.array(lengths))
    raise SystemExit("CHANGED: cumulative_sum_checked() takes it")
except pa.ArrowInvalid as error:
    print("pyarrow's cumulative_sum_checked():", error)
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
