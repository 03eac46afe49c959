#!/usr/bin/env bash
# transformers 5.24.0, accelerate 1.15.0, torch 2.13.0+cpu: of many models the Trainer multiplies gradients by gradient_accumulation_steps.
#
# Four rows as one batch or as four batches of one row with gradient_accumulation_steps=4 are one step. Guess: the same loss and the same step,
# up to rounding, where all rows have as many labels. Seen of one step of SGD without clipping:
# 1. Llama: so it is.
# 2. BERT and ALBERT for masked words, BART, and RoBERTa, ALBERT and GPT-2 for classes: the logged loss is 16.7 for 4.17 (5.5 for 1.39), and the
#    step is four times as long. Whoever has **kwargs in forward is taken to divide by num_items_in_batch; these take it and divide by
#    their own batch, so nobody divides by 4. Nothing warns.
# 3. With model.accepts_loss_kwargs = False the Trainer divides, and both are equal.
# Adam's step hides it; clipping, which is on unless it is turned off, cuts the larger gradient, and curves of two settings do not compare.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "transformers==5.24.0" "accelerate==1.15.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >steps.py <<'PY'
import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification,
                          Trainer, TrainingArguments)

print("torch", torch.__version__, "transformers", transformers.__version__)
BERT = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, embedding_size=32,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=4, pad_token_id=1)
LLAMA = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
BART = dict(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0, max_position_embeddings=64)
GPT2 = dict(vocab_size=64, n_embd=32, n_layer=1, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, num_labels=4, pad_token_id=0)
models = [("llama", AutoModelForCausalLM, LLAMA, 1), ("bert", AutoModelForMaskedLM, BERT, 4), ("albert", AutoModelForMaskedLM, BERT, 4),
          ("bart", AutoModelForSeq2SeqLM, BART, 4), ("roberta", AutoModelForSequenceClassification, BERT, 4),
          ("albert", AutoModelForSequenceClassification, BERT, 4), ("gpt2", AutoModelForSequenceClassification, GPT2, 4)]
torch.manual_seed(0)
tokens = torch.randint(4, 60, (4, 8))


def weights(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def step(kind, auto, sizes, rows, accumulation, mended=False):
    """The logged loss and how far one step moves the weights."""
    torch.manual_seed(1)
    model = auto.from_config(AutoConfig.for_model(kind, **sizes))
    if mended:
        model.accepts_loss_kwargs = False
    classes = auto is AutoModelForSequenceClassification
    data = [{"input_ids": row, "attention_mask": torch.ones(8, dtype=torch.long), "labels": row[0] % 4 if classes else row.flip(0)} for row in tokens]
    settings = TrainingArguments(output_dir="out", per_device_train_batch_size=rows, gradient_accumulation_steps=accumulation, max_steps=1,
                                 learning_rate=1.0, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, logging_steps=1,
                                 save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    before = weights(model)
    trainer = Trainer(model, settings, train_dataset=data)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"]), (weights(model) - before).norm().item(), type(model).__name__


for kind, auto, sizes, factor in models:
    (loss, length, name), (later, longer, _) = step(kind, auto, sizes, 4, 1), step(kind, auto, sizes, 1, 4)
    print(f"{name}: loss {later:.3f} for {loss:.3f}, step {longer / length:.4f} times as long", flush=True)
    assert abs(later / loss - factor) < 1e-3 and abs(longer / length - factor) < 1e-3, f"CHANGED: {name}"
later, longer, name = step(*models[-1][:3], 1, 4, mended=True)
print(f"{name} with accepts_loss_kwargs = False: loss {later:.3f}, step {longer / length:.4f} times as long")
assert abs(later / loss - 1) < 1e-3 and abs(longer / length - 1) < 1e-3, "CHANGED"
PY
venv/bin/python steps.py 2>err.log || { cat err.log; exit 1; }
