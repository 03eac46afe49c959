#!/usr/bin/env bash
# lightning 2.6.6, torch 2.13.0+cpu: with several optimizers every_n_train_steps saves at the multiples that steps of all of them have in common.
#
# A GAN has two optimizers, which both step in each batch. Its ModelCheckpoint says every_n_train_steps = N. The documentation says that
# global_step counts the steps of all optimizers. Guess: so a file each N / 2 batches, or each N. Seen: it depends on N, since a file is written where
# the count, which goes up by 2 a batch, is a multiple of N:
# 1. Two optimizers: N = 2 saves each batch, 3 each third, 4 each second, 5 each fifth, 6 each third. A change from 999 to 1000 halves the distance.
# 2. Three: N = 2 each second batch, 3 each batch, 4 each fourth, 6 each second.
# 3. max_steps = 20 ends after 10 batches, with two optimizers, and 25 after 13.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "lightning==2.6.6" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import logging
import math
import tempfile
import warnings

import lightning
import torch

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")


class Parts(lightning.LightningModule):
    def __init__(self, parts):
        super().__init__()
        self.automatic_optimization = False
        self.parts = torch.nn.ModuleList(torch.nn.Linear(2, 1) for _ in range(parts))
        self.batches, self.saved = 0, []

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.1) for part in self.parts]

    def training_step(self, batch, _):
        self.batches += 1
        optimizers = self.optimizers()
        for optimizer, part in zip(optimizers if isinstance(optimizers, list) else [optimizers], self.parts):
            optimizer.zero_grad()
            self.manual_backward(part(batch[0]).square().mean())
            optimizer.step()

    def on_save_checkpoint(self, _):
        self.saved.append(self.batches)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 2)), batch_size=1)
print("lightning", lightning.__version__)
for parts in 1, 2, 3:
    for every in 2, 3, 4, 5, 6:
        files = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=tempfile.mkdtemp(dir="."), every_n_train_steps=every, save_top_k=-1)
        model = Parts(parts)
        lightning.Trainer(max_epochs=1, callbacks=[files], **quiet).fit(model, data)
        distance = every // math.gcd(every, parts)
        print(f"{parts} optimizers, every_n_train_steps = {every}: after batches {model.saved[:4]} ...")
        assert model.saved == list(range(distance, 25, distance)), "CHANGED"
for steps, batches in (20, 10), (25, 13):
    model = Parts(2)
    lightning.Trainer(max_steps=steps, enable_checkpointing=False, **quiet).fit(model, data)
    print(f"2 optimizers, max_steps = {steps}: {model.batches} batches")
    assert model.batches == batches, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
