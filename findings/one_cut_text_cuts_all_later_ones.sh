#!/usr/bin/env bash
# transformers 5.24.0, tokenizers 0.23.3: a tokenizer that cut one text before it was saved cuts all texts of whoever reads its file.
#
# tokenizer(text, truncation=True, max_length=8) is an option of a call. Guess: it holds for that call, and save_pretrained() writes how
# text becomes tokens, whatever was called before. Seen:
# 1. The call leaves its length in the tokenizer; save_pretrained() puts it into tokenizer.json, and tokenizers.Tokenizer.from_file() of that
#    file gives the first 8 tokens of every text, without a word: a job that packs a corpus with it packs the beginnings of documents. padding
#    likewise: texts are filled up with padding tokens.
# 2. transformers itself shows nothing of it: AutoTokenizer.from_pretrained() of the same folder gives all tokens, as each call sets its own.
# 3. A call without truncation before the save puts it right, so the file depends on which text was tokenised last.
# With tokenizers call no_truncation() and no_padding() on what was loaded.
#
# Fails if it changes. Takes about a minute, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "transformers==5.24.0" "tokenizers==0.23.3" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >cut.py <<'PY'
import json

import tokenizers
import transformers

print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
TEXT = " ".join(f"w{number}" for number in range(20))
words = {"[PAD]": 0, "[UNK]": 1} | {word: 2 + number for number, word in enumerate(TEXT.split())}


def saved(folder, *calls):
    """What is read, by tokenizers and by transformers, of a tokenizer that was saved behind these calls: number of tokens of 20 and of 2 words."""
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]")
    for options in calls:
        tokenizer(TEXT, **options)
    tokenizer.save_pretrained(folder)
    plain = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    again = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    counts = [[len(tokens) for tokens in found] for found in ([plain.encode(text).ids for text in (TEXT, "w1 w2")],
                                                              [again(text)["input_ids"] for text in (TEXT, "w1 w2")])]
    with open(folder + "/tokenizer.json") as file:
        kept = json.load(file)
    print(f"{folder}: tokenizers {counts[0]}, transformers {counts[1]}; truncation in the file: {kept['truncation']}")
    return counts


cut = {"truncation": True, "max_length": 8}
filled = cut | {"padding": "max_length"}
assert saved("no-call") == [[20, 2], [20, 2]]
assert saved("cut", cut) == [[8, 2], [20, 2]], "CHANGED"
assert saved("cut-and-filled", filled) == [[8, 8], [20, 2]], "CHANGED"
assert saved("cut-then-whole", cut, {}) == [[20, 2], [20, 2]], "CHANGED"
PY
venv/bin/python cut.py 2>err.log || { cat err.log; exit 1; }
