#!/usr/bin/env bash
# tokenizers 0.23.3: training a WordPiece tokenizer twice on the same text gives two tokenizers.
#
# Guess: training a tokenizer counts and sorts, so the same text and settings give the same file. Seen, 1000 pieces of 2,600 lines:
# 1. WordPieceTrainer: two trainings in one process differ, in the numbers of some 200 to 600 pieces and in which pieces there are. So
#    token shards that one job wrote mean something else under a tokenizer that another trained, and ranks that train their own disagree.
# 2. One thread (RAYON_NUM_THREADS=1, TOKENIZERS_PARALLELISM=false) does not help.
# 3. BPE with a continuing_subword_prefix differs likewise: its first pieces, letters with the prefix, come in random order, and merges
#    of equal counts are ordered by these numbers. BPE without a prefix and byte-level BPE give the same file each time.
#
# Fails if it changes. Takes less than a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "tokenizers==0.23.3" 2>pip.log || { cat pip.log; exit 1; }

cat >twice.py <<'PY'
import argparse
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

print("tokenizers", tokenizers.__version__)
lines = open(argparse.__file__).read().splitlines()


def vocabulary(kind):
    split = pre_tokenizers.ByteLevel() if kind == "byte-level BPE" else pre_tokenizers.Whitespace()
    settings = {"vocab_size": 1000, "show_progress": False}
    if kind == "WordPiece":
        tokenizer, trainer = Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer(special_tokens=["[UNK]"], **settings)
    else:
        prefix = {"continuing_subword_prefix": "##"} if kind == "BPE with prefix" else {}
        alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if kind == "byte-level BPE" else {}
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer(**settings, **prefix, **alphabet)
    tokenizer.pre_tokenizer = split
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.get_vocab()


for kind in ("WordPiece", "BPE with prefix", "BPE", "byte-level BPE"):
    one, other = vocabulary(kind), vocabulary(kind)
    moved = sum(other.get(piece, number) != number for piece, number in one.items())
    missing = len(set(one) - set(other))
    print(f"{kind}: {len(one)} pieces, {moved} of them have another number the second time, {missing} are gone")
    varies = kind in ("WordPiece", "BPE with prefix")
    if (one != other) != varies:
        sys.exit(f"CHANGED: {kind} {'is the same' if varies else 'differs'}")
PY
venv/bin/python twice.py
RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false venv/bin/python twice.py
