#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0+cpu: rotary positions of kind "dynamic" remember the longest sequence.
#
# With rope_type "dynamic" the base grows with the length of a sequence that is longer than max_position_embeddings. Guess: what
# a model says of a text depends on the text and the weights. Seen:
# 1. The logits of 20 tokens (context 16) differ before and after the same model, in eval() and without gradients, has seen 60:
#    frequencies stay those of the longest sequence so far.
# 2. A text of exactly 16 tokens, which needs no stretching, stays changed as well; one of 15 puts the frequencies back, for
#    itself and for what comes after it.
# So a loss in evaluation depends on the order of the batches before it, and two ranks that have seen other batches differ.
#
# Fails if either changes. Takes about two minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check "torch==2.13.0" "transformers==5.24.0" 2>pip.log || { cat pip.log; exit 1; }

cat >dynamic.py <<'EOF'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=2, max_position_embeddings=16,
                     rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
first = LlamaForCausalLM(config).eval()
again = LlamaForCausalLM(config).eval()
again.load_state_dict(first.state_dict())
texts = {length: torch.randint(0, 50, (1, length)) for length in (15, 16, 20, 60)}


def moved(model, length, between):
    """The largest change of the logits of one text when the model has read others in between."""
    before = model(texts[length]).logits
    for other in between:
        model(texts[other])
    return (model(texts[length]).logits - before).abs().max().item()


with torch.no_grad():
    longer = moved(first, 20, [60])
    context = moved(again, 16, [60])
    back = moved(again, 16, [60, 15])
print(f"20 tokens after 60: {longer:.1e}; 16 tokens after 60: {context:.1e}")
assert longer > 1e-5 and context > 1e-5, "CHANGED: the past does not show any more"
again(texts[15])
assert moved(again, 16, []) == 0
print(f"16 tokens from after 60 to after 60 and 15: {back:.1e}")
assert back > 1e-5, "CHANGED: a shorter text does not put the frequencies back"
EOF
venv/bin/python dynamic.py 2>err.log || { cat err.log; exit 1; }
