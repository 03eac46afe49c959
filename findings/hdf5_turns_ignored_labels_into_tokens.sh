#!/usr/bin/env bash
# h5py 3.16.0 (HDF5 2.0.0), numpy 2.4.0: what does not fit into a data set's integers is clipped, so -100 becomes token 0.
#
# Tokens of a small vocabulary are kept as uint16, by h5py or by numpy.memmap. Guess: an array of int64 with a number that does not fit raises, as
# the Python integer 70000 does, or wraps around, as the same assignment does in NumPy. Seen, without a warning:
# 1. dataset[...] = array and create_dataset(data=array, dtype="uint16") clip: 65536, 70000 and all above are 65535, one token, and whoever checks
#    that ids are below a vocabulary of 65536 finds nothing. NumPy has 0 and 4464.
# 2. Labels of -100, which losses ignore, become 0, which is a token and is trained; NumPy has 65436, which is out of a smaller vocabulary.
# 3. Reading through a type does the same: dataset.astype("uint16")[...], and read_direct() into an array of uint16.
# 4. NaN becomes 0 in int8 and uint8 and the smallest number in int32; 300.7 becomes 127 and 255. float32 written into float16 is
#    infinity from 65505 on, though what is below 65520 rounds to 65504, as NumPy has it.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "h5py==3.16.0" "numpy==2.4.0" 2>pip.log || { cat pip.log; exit 1; }

cat >clip.py <<'PY'
import h5py
import numpy as np

print("h5py", h5py.__version__, "HDF5", h5py.version.hdf5_version, "numpy", np.__version__)
file = h5py.File("tokens.h5", "w")


def stored(values, kind):
    """The values as a data set of that type has them, three ways to write or read, which agree."""
    written = file.create_dataset(f"{kind}-{len(file)}", shape=values.shape, dtype=kind)
    written[...] = values
    made = file.create_dataset(f"{kind}-{len(file)}", data=values, dtype=kind)
    whole = file.create_dataset(f"{kind}-{len(file)}", data=values)
    direct = np.zeros(values.shape, kind)
    whole.read_direct(direct)
    ways = [written[...], made[...], whole.astype(kind)[...], direct]
    assert all(np.array_equal(ways[0], way) for way in ways), "CHANGED: the ways differ"
    return ways[0].tolist()


tokens = np.array([7, 65535, 65536, 70000, -1, -100])
clipped = stored(tokens, "uint16")
wrapped = np.zeros(tokens.shape, "uint16")
wrapped[...] = tokens
print(f"{tokens.tolist()} in uint16: h5py {clipped}, numpy {wrapped.tolist()}")
assert clipped == [7, 65535, 65535, 65535, 0, 0], "CHANGED"
assert wrapped.tolist() == [7, 65535, 0, 4464, 65535, 65436], "CHANGED: NumPy"

numbers = np.array([1.5, 300.7, -300.7, np.nan, np.inf], dtype=np.float32)
for kind, expected in (("int8", [1, 127, -128, 0, 127]), ("uint8", [1, 255, 0, 0, 255]), ("int32", [1, 300, -300, -2**31, 2**31 - 1])):
    found = stored(numbers, kind)
    print(f"{numbers.tolist()} in {kind}: {found}")
    assert found == expected, "CHANGED"
large = np.array([65504, 65505, 65519, 65520], dtype=np.float32)
with np.errstate(over="ignore"):
    nearest = large.astype(np.float16).tolist()
halves = file.create_dataset("halves", shape=large.shape, dtype="float16")
halves[...] = large
found = halves[...].tolist()
print(f"{large.tolist()} in float16: h5py {found}, numpy {nearest}")
assert found == [65504] + [np.inf] * 3 and nearest == [65504] * 3 + [np.inf], "CHANGED"
PY
venv/bin/python clip.py 2>err.log || { cat err.log; exit 1; }
