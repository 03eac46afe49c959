"""transformers_tokenizer_test.py PROGRAM: transformers makes of awkward texts the tokens that PROGRAM (test_data) does, and the
texts of these, with the files that it wrote beside a model. Skipped (77) where transformers is not installed, or PROGRAM was built
without SentencePiece."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import transformers
except ModuleNotFoundError as error:
    print(f"skipped: {error.name} is not installed: pip install transformers")
    sys.exit(77)


def check(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = json.loads((folder / "tokenizer.model.texts.json").read_text(encoding="utf-8"))
    assert len(texts) == 600, len(texts)
    for each in texts:
        text, expected = each["text"], each["tokens"]
        tokens = tokenizer(text)["input_ids"]
        assert tokens == expected, (text, tokens, expected)
        back = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        assert back == text, (text, back)
    batch = tokenizer([each["text"] for each in texts])["input_ids"]
    assert batch == [each["tokens"] for each in texts]
    print(f"transformers {transformers.__version__} makes the same tokens of {len(texts)} texts")


def main(program):
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "--gtest_filter=SentencePiece.GivesEveryTextBack*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "SMP_TOKENIZER_FOLDER": folder})
        if not (pathlib.Path(folder) / "tokenizer.json").exists():
            print("skipped: built without SentencePiece")
            sys.exit(77)
        check(pathlib.Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
