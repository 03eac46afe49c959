#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0+cpu: sequences packed into one row see each other unless the call makes no cache.
#
# Positions that begin again tell a model where the next sequence of a packed row begins, and transformers then masks what is before it.
# Guess: a call that is given the same positions has the same logits, whether keys are kept for a later call or activations are made
# again. Seen of a Llama with 5 and 7 tokens in a row, beside the 7 alone, sdpa and eager alike:
# 1. model(tokens, position_ids=positions) differs from the 7 alone: the second sequence looks at the first, in train() and eval(). With
#    use_cache=False it is equal. use_cache is true in a fresh config; the Trainer turns it off, a loop of one's own does not.
# 2. Gradient checkpointing turns the cache off in train(), so with it sequences are apart: what should save memory changes the loss. In
#    eval() of the same model they are not apart.
# 3. A mask of ones, which a tokenizer returns and padding needs, joins them with and without a cache.
# Nothing warns. GPT-2 and Qwen2 behave alike.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "transformers==5.24.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >packed.py <<'PY'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__)
torch.manual_seed(0)
first, second = torch.randint(0, 64, (1, 5)), torch.randint(0, 64, (1, 7))
tokens = torch.cat([first, second], 1)
positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
ones = torch.ones(1, 12, dtype=torch.long)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def make(kind, attention):
    torch.manual_seed(1)
    settings = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0) if kind == "gpt2" else sizes
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), attn_implementation=attention)


def leaks(model, what, expected, **arguments):
    alone = model(second, use_cache=False).logits
    apart = (model(tokens, position_ids=positions, **arguments).logits[:, 5:] - alone).abs().max().item()
    print(f"  {what}: {apart:.1e} apart from the second sequence alone")
    assert (apart > 1e-3) == expected and (expected or apart < 1e-5), f"CHANGED: {what}"


for kind in ("llama", "gpt2", "qwen2"):
    for attention in ("sdpa", "eager"):
        model = make(kind, attention)
        print(kind, attention)
        for mode in ("train", "eval"):
            getattr(model, mode)()
            leaks(model, mode, True)
            leaks(model, f"{mode}, use_cache=False", False, use_cache=False)
            leaks(model, f"{mode}, a mask of ones, use_cache=False", True, use_cache=False, attention_mask=ones)
        loss = model.train()(tokens, position_ids=positions, labels=tokens).loss.item()
        model.gradient_checkpointing_enable()
        other = model(tokens, position_ids=positions, labels=tokens).loss.item()
        print(f"  loss in train(): {loss:.4f}; with gradient checkpointing: {other:.4f}")
        assert abs(loss - other) > 1e-4, "CHANGED: checkpointing keeps the loss"
        leaks(model, "train, gradient checkpointing", False)
        leaks(model.eval(), "eval, gradient checkpointing", True)
PY
venv/bin/python packed.py 2>err.log || { cat err.log; exit 1; }
