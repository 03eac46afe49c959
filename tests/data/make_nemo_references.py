#!/usr/bin/env python3
"""Writes tests/data/nemo/*.json: what OmegaConf makes of the configurations beside them, references
resolved with NeMo's `multiply`, and of single scalars.

    pip install omegaconf==2.3.0 && tests/data/make_nemo_references.py
"""
import json
import os

from omegaconf import OmegaConf

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nemo")

SCALARS = """
1e-5 1e5 1E5 1.5e5 1.5e+5 1.5E-5 010 0o10 0b11 -0b11 0x1F 0xg 1_000 1__0 0_ _1 1_ 08 09.5 +1 -0 -7 00 0
yes Yes YES yEs no No NO on On ON off Off OFF y Y n N true True TRUE tRue false False FALSE
~ null Null NULL nUll None none nil
1:30 1:30.5 -1:30 1:60 1:75 00:03:30:00 12:30:45 1:30:45.25 0:10
2020-01-01 2020-01-01T00:00:00 .5 -.5 +.5 5. -5. 0.5_0 1_0.5 ._ ._5 1.e3 1.e+3 .5e3 .5e+3 12e03 e5 1e 1e+ 1.2.3
.inf -.inf +.inf .Inf .INF .iNF .nan .NaN .NAN -.nan inf nan
abc 16-mixed bf16 980,10,10 /a/b 0x 0b 0b2 1a +_1 --1 +-1 1,000 9223372036854775807 -9223372036854775807
""".split()


def plain(value):
    """Numbers that JSON lacks, as texts."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return {"float": str(value)}
    return {type(value).__name__: value}


def main():
    OmegaConf.register_new_resolver("multiply", lambda left, right: left * right)
    table = [[text, plain(OmegaConf.to_container(OmegaConf.create("key: " + text))["key"])]
             for text in SCALARS]
    with open(os.path.join(FOLDER, "scalars.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in table) + "\n]\n")
    os.environ["RANK"] = "unknown"
    for name in ("llama", "megatron"):
        tree = OmegaConf.load(os.path.join(FOLDER, name + ".yaml"))
        if "rank" in tree:
            del tree["rank"]  # a variable of the environment
        with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(OmegaConf.to_container(tree, resolve=True), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
