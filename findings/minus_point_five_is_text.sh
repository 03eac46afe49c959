#!/usr/bin/env bash
# PyYAML 6.0.3, OmegaConf 2.3.0: -.5 and +.5 are texts, .5 is a number.
#
# YAML 1.1, which both follow, lets a number begin with a sign and a point, and 1.2 does too. Guess: whoever reads .5 as a number
# reads -.5 as one. Seen: PyYAML's form of numbers has a sign where digits stand before the point, and none where they do not;
# OmegaConf, which adds forms of its own to read 1e-5, has the same gap. ruamel.yaml reads all of them as numbers. So a bias or a
# scale written as -.5 arrives as text, in Hydra's and NeMo's configurations too, and what compares it with a number fails later.
#
# Fails if -.5 becomes a number there, or .5 a text. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check "pyyaml==6.0.3" "omegaconf==2.3.0" "ruamel.yaml==0.18.15" 2>pip.log || { cat pip.log; exit 1; }

cat >points.py <<'PY'
import sys

import yaml
from omegaconf import OmegaConf
from ruamel.yaml import YAML

readers = {"PyYAML": yaml.safe_load,
           "OmegaConf": lambda text: OmegaConf.to_container(OmegaConf.create(text)),
           "ruamel.yaml": YAML(typ="safe").load}
as_seen = True
for name, read in readers.items():
    kinds = {text: type(read("key: " + text)["key"]).__name__ for text in (".5", "-.5", "+.5", "-0.5")}
    print(f"{name}: {kinds}")
    with_sign = "float" if name == "ruamel.yaml" else "str"
    as_seen = as_seen and list(kinds.values()) == ["float", with_sign, with_sign, "float"]
sys.exit(not as_seen)
PY

venv/bin/python points.py
