#!/usr/bin/env bash
# zarr 3.1.6, tensorstore 0.1.86, numpy 2.4.6: weights of which a file is missing are read as zeros, nothing said.
#
# An array that is stored as zarr, one file a chunk, is how several trainers keep their checkpoints. Guess: an array that says it is complete is
# read whole, or reading raises, as it does where the file of a chunk is cut short; so a copy that left out files is found. Seen of 8 numbers in 4 chunks:
# 1. With one file less, zarr and tensorstore give its place as zeros (the fill value); both formats, 2 and 3, alike. There is no count of chunks
#    to compare with.
# 2. Chunks that were never written, as in a job that was killed in the middle, are the same zeros; the folder opens as a whole array.
# 3. With all chunk files gone it is an array of zeros still.
# 4. A chunk of zeros is not written either (zarr, unless write_empty_chunks says so), so the number of files says nothing. What tensorstore has for
#    it, fill_missing_data_reads=False, raises, for such chunks too; it writes them with store_data_equal_to_fill_value=True.
# 5. A file cut in half raises in both. A fill value that no weight has, NaN, makes the hole visible.
# Orbax 0.12.8, which is made of tensorstore, raises where a chunk is missing.
#
# Fails if it changes. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "zarr==3.1.6" "tensorstore==0.1.86" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >chunks.py <<'PY'
import importlib.metadata
import pathlib

import numpy as np
import tensorstore as ts
import zarr

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("zarr", "tensorstore", "numpy")))
WEIGHTS = np.arange(1, 9, dtype=np.float32)


def stored(name, version, fill=0.0, values=WEIGHTS):
    array = zarr.create_array(name, shape=(8,), chunks=(2,), dtype="float32", zarr_format=version, fill_value=fill, compressors=None)
    array[: len(values)] = values
    return pathlib.Path(name)


def chunk(folder, version, place):
    return folder / "c" / str(place) if version == 3 else folder / str(place)


def by_zarr(folder, version):
    return zarr.open_array(str(folder), mode="r")[:]


def by_tensorstore(folder, version, **options):
    spec = {"driver": "zarr3" if version == 3 else "zarr", "kvstore": {"driver": "file", "path": str(folder.resolve())}, **options}
    return ts.open(spec).result().read().result()


def raises(read, *args, **options):
    try:
        return None if read(*args, **options) is not None else None
    except Exception as error:  # each library has its own
        return f"{type(error).__name__}: {str(error)[:80]}"


for version in (2, 3):
    folder = stored(f"lost{version}", version)
    chunk(folder, version, 2).unlink()
    wanted = WEIGHTS.copy()
    wanted[4:6] = 0
    for read in (by_zarr, by_tensorstore):
        found = read(folder, version)
        print(f"format {version}, one file lost, {read.__name__}: {found.tolist()}")
        assert np.array_equal(found, wanted), "CHANGED"
    strict = raises(by_tensorstore, folder, version, fill_missing_data_reads=False)
    print("fill_missing_data_reads=False:", strict)
    assert strict, "CHANGED"

    half = stored(f"half{version}", version, values=WEIGHTS[:4])
    assert by_zarr(half, version).tolist() == by_tensorstore(half, version).tolist() == [1, 2, 3, 4, 0, 0, 0, 0], "CHANGED"
    for place in range(2):
        chunk(half, version, place).unlink()
    assert not by_zarr(half, version).any() and not by_tensorstore(half, version).any(), "CHANGED"
    print(f"format {version}: without any chunk it is", by_zarr(half, version).tolist())

    zeros = stored(f"zeros{version}", version, values=np.zeros(8, np.float32))
    assert not any(chunk(zeros, version, place).exists() for place in range(4)), "CHANGED: chunks of zeros are written"
    assert raises(by_tensorstore, zeros, version, fill_missing_data_reads=False), "CHANGED"

    cut = stored(f"cut{version}", version)
    file = chunk(cut, version, 1)
    file.write_bytes(file.read_bytes()[:4])
    for read in (by_zarr, by_tensorstore):
        error = raises(read, cut, version)
        print(f"format {version}, one file cut in half, {read.__name__}: {error}")
        assert error, "CHANGED"

    marked = stored(f"marked{version}", version, fill=float("nan"))
    chunk(marked, version, 2).unlink()
    assert np.isnan(by_zarr(marked, version)).sum() == 2
PY
venv/bin/python chunks.py 2>err.log || { cat err.log; exit 1; }
