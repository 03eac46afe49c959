#!/usr/bin/env python3
"""Writes megatron/: pairs of .bin and .idx, as Megatron-LM's own builder makes them, and their documents as JSON.

    python3 -m venv venv && venv/bin/pip install torch==2.13.0 numpy packaging && venv/bin/pip install --no-deps megatron-core==0.16.1
    venv/bin/python make_megatron_tokens.py
"""
import json
import pathlib
import random

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

FOLDER = pathlib.Path(__file__).parent / "megatron"
FOLDER.mkdir(exist_ok=True)
dice = random.Random(1)

# 16 bits, an end (0) behind each document; 32 bits, several sequences a document, no ends.
for name, dtype, vocabulary, sequences, end in (("small", numpy.uint16, 65000, [1], [0]), ("wide", numpy.int32, 100000, [1, 2, 3], [])):
    builder = IndexedDatasetBuilder(str(FOLDER / f"{name}.bin"), dtype=dtype)
    documents = []
    for number in range(12):
        parts = [[dice.randrange(1, vocabulary) for _ in range(dice.randrange(9))] for _ in range(dice.choice(sequences))]
        documents.append([token for part in parts for token in part])
        parts[-1] = parts[-1] + end
        builder.add_document(torch.tensor([token for part in parts for token in part]), [len(part) for part in parts])
    builder.finalize(str(FOLDER / f"{name}.idx"))
    (FOLDER / f"{name}.json").write_text(json.dumps({"vocab_size": vocabulary, "documents": documents}) + "\n")
