#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 26.0.1: what save_to_disk() writes does not say how many rows there must be, and a cut file is read without a word.
#
# Guess: `num_examples` in dataset_info.json is the number of rows in the folder, so that who reads it finds out that a file was cut short.
# Seen, of a split of three rows:
# 1. After select() of two the folder has two rows, and dataset_info.json still says 3. After concatenate_datasets() there are six rows, and
#    after from_dict() nothing is said at all. state.json has no number either.
# 2. A data file that is cut between two batches of rows is loaded by load_from_disk() without an error: 2 of 6 rows, or all 6 if only the
#    mark at the end is gone.
# So a reader should compare no number, and look for the mark (ff ff ff ff 00 00 00 00) that ends an Arrow stream.
#
# Fails if it changes. Takes about a minute, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "datasets==5.2.0" "pyarrow==26.0.1" 2>pip.log || { cat pip.log; exit 1; }

cat >saved.py <<'PY'
import json
import pathlib

import datasets
import pyarrow

datasets.disable_progress_bars()
print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)
pathlib.Path("lines.txt").write_text("one\ntwo\nthree\n")
lines = datasets.load_dataset("text", data_files="lines.txt", cache_dir="cache")["train"]


def said(name: str, dataset) -> tuple[int, int | None]:
    """Rows in a saved folder, and what its dataset_info.json says."""
    dataset.save_to_disk(name)
    info = json.loads((pathlib.Path(name) / "dataset_info.json").read_text())
    assert "num_examples" not in (pathlib.Path(name) / "state.json").read_text()
    return len(datasets.load_from_disk(name)), info.get("splits", {}).get("train", {}).get("num_examples")


seen = {
    "as loaded": said("whole", lines),
    "selected": said("selected", lines.select([0, 2])),
    "joined": said("joined", datasets.concatenate_datasets([lines, lines])),
    "from_dict": said("made", datasets.Dataset.from_dict({"text": ["one"]})),
}
print("rows, and what is said:", seen)
assert seen["as loaded"] == (3, 3)
assert seen["selected"] == (2, 3), "CHANGED: the number is that of the rows"
assert seen["joined"][0] == 6 and seen["joined"][1] != 6, "CHANGED: the number is that of the rows"
assert seen["from_dict"] == (1, None), "CHANGED: a number is said"

datasets.config.DEFAULT_MAX_BATCH_SIZE = 2  # three batches
six = datasets.Dataset.from_dict({"text": ["one", "two", "three", "four", "five", "six"]})
six.save_to_disk("cut")
path = pathlib.Path("cut/data-00000-of-00001.arrow")
bytes_ = path.read_bytes()
with pyarrow.ipc.open_stream(pyarrow.py_buffer(bytes_)) as reader:
    reader.schema
stream = pyarrow.BufferReader(bytes_)
reader = pyarrow.ipc.open_stream(stream)
reader.read_next_batch()
first = stream.tell()
rows = []
for size in (first, len(bytes_) - 8):
    path.write_bytes(bytes_[:size])
    rows.append(len(datasets.load_from_disk("cut")))
print("rows of a cut file:", rows)
assert rows == [2, 6], "CHANGED: a cut file is noticed"
PY
venv/bin/python saved.py 2>err.log || { cat err.log; exit 1; }
