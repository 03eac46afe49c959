#!/usr/bin/env bash
# transformers 5.24.0, accelerate 1.15.0, torch 2.13.0+cpu: the Trainer's eval_loss depends on per_device_eval_batch_size.
#
# In training the Trainer divides by the tokens that have a label, of the whole step. Guess: eval_loss is the mean over the tokens of the evaluation
# set likewise, and the size of a batch is a matter of memory. Seen of a Llama of random weights, 8 rows, some with 1 label and some with 29:
# 1. With batches of 1, 2, 4 and 8 rows it is 5.46, 5.31, 5.06 and 5.06: each batch has the mean of its own tokens, and counts by its rows. The
#    mean over tokens is 5.06, which one batch of all rows gives.
# 2. So a row with one label counts as much as a long one if it is alone, and less beside a long one. Padding to a batch's longest row, another
#    number of devices, and sorting by length change the number alike, and the perplexity made of it: 235 for 158 here.
# A compute_loss_func or compute_metrics that sums losses and tokens, or one batch size for all runs that are compared, helps.
#
# Fails if it changes. Takes one to four minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "transformers==5.24.0" "accelerate==1.15.0" "torch==2.13.0" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

print("transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    model.lm_head.weight.mul_(20)
rows = []
for length in (2, 2, 30, 2, 2, 2, 28, 3):
    tokens = torch.randint(0, 50, (32,))
    rows.append({"input_ids": tokens, "labels": torch.where(torch.arange(32) < length, tokens, -100)})

total, count = 0.0, 0
with torch.no_grad():
    for row in rows:
        labels = row["labels"][1:]
        logits = model(row["input_ids"][None]).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        count += int((labels >= 0).sum())
right = total / count
found = {}
for batch in (1, 2, 4, 8):
    arguments = TrainingArguments(output_dir="out", per_device_eval_batch_size=batch, report_to=[], use_cpu=True, disable_tqdm=True)
    found[batch] = Trainer(model=model, args=arguments, eval_dataset=rows).evaluate()["eval_loss"]
print(f"mean over {count} tokens {right:.4f}; eval_loss by size of a batch:", {batch: round(loss, 4) for batch, loss in found.items()})
assert abs(found[8] - right) < 1e-3, "CHANGED"
assert abs(found[1] - right) > 0.1 and abs(found[2] - found[1]) > 0.02, "CHANGED"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
