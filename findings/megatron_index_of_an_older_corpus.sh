#!/usr/bin/env bash
# megatron-core 0.16.1, torch 2.13.0+cpu: the index of samples that Megatron keeps is that of the older corpus.
#
# GPTDataset stores which tokens make up which sample under path_to_cache, named by a hash. Guess: the hash, or a look at the files, tells
# when the .bin and .idx under the same name have been written anew. Seen, 50 documents replaced by 500 under one name:
# 1. The samples come from the first 50 documents only; the other 450 are never read, and nothing is said. In another cache folder
#    samples of the same settings come from all over the corpus.
# 2. Other tokens in documents of the same lengths are taken, with the old index. With fewer documents than before the old index
#    points behind the end, and reading a sample raises IndexError.
# The hash is made of name, split, seed and lengths of sequences: give a new corpus a new name, or empty the folder.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "numpy" "packaging" 2>pip.log || { cat pip.log; exit 1; }
venv/bin/pip install -q --no-compile --disable-pip-version-check --no-deps "megatron-core==0.16.1" 2>pip.log || { cat pip.log; exit 1; }

cat >corpus.py <<'PY'
import importlib.metadata
import os

import numpy
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

print("torch", torch.__version__, "megatron-core", importlib.metadata.version("megatron-core"))


class Tokenizer:
    unique_identifiers = {"class": "numbers"}
    eod, pad, vocab_size = 0, 1, 1000000


def write(documents, first=0):
    """Documents of 20 to 26 tokens, whose hundreds tell the document."""
    builder = IndexedDatasetBuilder("corpus.bin", dtype=numpy.int32)
    for number in range(documents):
        length = 20 + number % 7
        builder.add_document(first + 100 * number + torch.arange(length), [length])
    builder.finalize("corpus.idx")


def documents(cache):
    """The numbers of the documents that a training set of 60 samples reads."""
    config = GPTDatasetConfig(random_seed=1, sequence_length=16, blend=(["corpus"], None), split="100,0,0", path_to_cache=cache,
                              tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
                              mid_level_dataset_surplus=0.005)
    samples = BlendedMegatronDatasetBuilder(GPTDataset, [60, 0, 0], lambda: True, config).build()[0]
    return {int(token) // 100 for number in range(len(samples)) for token in samples[number]["tokens"]}


torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)
write(50)
first = documents("cache")
write(500)
stale, fresh = documents("cache"), documents("other")
write(50, first=50000)
moved = documents("cache")
print(f"50 documents: {len(first)} read, the last {max(first)}; 500 under the same name: {len(stale)} read, the last {max(stale)};",
      f"in a new cache: the last {max(fresh)}; other tokens: {min(moved)} to {max(moved)}")
assert max(first) == max(stale) == 49 and max(fresh) > 400, "CHANGED: the new corpus is noticed"
assert min(moved) == 500 and max(moved) == 549
write(10)
try:
    documents("cache")
    raise SystemExit("CHANGED: fewer documents are noticed")
except IndexError as error:
    print("10 documents under the same name:", error)
torch.distributed.destroy_process_group()
PY
venv/bin/python corpus.py 2>err.log || { cat err.log; exit 1; }
