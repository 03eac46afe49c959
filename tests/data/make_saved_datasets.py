#!/usr/bin/env python3
"""Writes saved/: folders of Hugging Face's `datasets`, as its save_to_disk() leaves them.

    python3 -m venv venv && venv/bin/pip install datasets==5.2.0 pyarrow==26.0.1
    venv/bin/python make_saved_datasets.py
"""
import pathlib
import shutil
import tempfile

import datasets

FOLDER = pathlib.Path(__file__).parent / "saved"
TEXTS = ["one", "", "drei und vier", "\u4e94 \U0001f3b2", "line\nline\r\n", " spaces ", "\u0000 is a byte", "eight", "nine", "ten", "eleven"]

assert datasets.__version__ == "5.2.0"
datasets.disable_progress_bars()
datasets.config.DEFAULT_MAX_BATCH_SIZE = 2  # several batches in a small file
shutil.rmtree(FOLDER, ignore_errors=True)


def save(name, dataset, **options):
    dataset.save_to_disk(str(FOLDER / name), **options)


rows = {"id": list(range(len(TEXTS))), "more": [{"list": [number]} for number in range(len(TEXTS))], "text": TEXTS}
whole = datasets.Dataset.from_dict(rows)
save("shards", whole, num_shards=3)
# Leaves a file with row numbers in the folder, which is no data.
datasets.load_from_disk(str(FOLDER / "shards")).filter(lambda row: row["id"] % 2 == 0)
large = datasets.Features({"body": datasets.Value("large_string")})
save("large", datasets.Dataset.from_dict({"body": TEXTS}, features=large))
save("null", datasets.Dataset.from_dict({"text": ["one", None, "three"]}))
save("empty", datasets.Dataset.from_dict({"text": []}))
save("splits", datasets.DatasetDict({"train": whole.select([0, 2]), "test": whole.select([3])}))
with tempfile.TemporaryDirectory() as folder:
    text = pathlib.Path(folder) / "lines.txt"
    text.write_text("one\ntwo\nthree\n")
    lines = datasets.load_dataset("text", data_files=str(text), cache_dir=folder)["train"]
    save("loaded", lines)
    save("selected", lines.select([0, 2]))  # its dataset_info.json says three rows
for cache in FOLDER.rglob(".cache*"):
    shutil.rmtree(cache)
