#!/usr/bin/env bash
# transformers 5.24.0, gguf 0.19.0, torch 2.13.0+cpu: a Llama read from a GGUF file has lost how its positions are stretched.
#
# A GGUF file says how rotary positions are scaled: llama.rope.scaling.type and .factor (linear, yarn), or, as converters write Llama 3.1's, a
# tensor rope_freqs.weight. Guess: from_pretrained(gguf_file=...) takes all of them over, or refuses what it does not know. Seen:
# 1. For each of the three the loaded config says rope_type "default", nothing raises, and logits are those of a model without scaling to
#    the bit; with the config's own scaling of 4, linear, they are others.
# 2. rope_theta is taken over. rms_norm_eps is the float32 number, 9.999999747e-06 for 1e-05, so a config compared as text differs.
# So a long-context model is another model beyond and within its first context; a fine-tuning starts from the wrong one.
#
# Fails if it changes. Takes one to three minutes, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "torch==2.13.0" "transformers==5.24.0" "gguf==0.19.0" "accelerate==1.15.0" "numpy" 2>pip.log || { cat pip.log; exit 1; }

cat >scaling.py <<'PY'
import importlib.metadata
import os

import gguf
import numpy
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__, "gguf", importlib.metadata.version("gguf"))
SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, rms_norm_eps=1e-5)
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm",
         "input_layernorm": "attn_norm", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "model.layers": "blk"}


def turned(weight, heads):
    """Rows of q and k in GGUF's order: both halves of a head interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(folder, model, scaling):
    os.mkdir(folder)
    writer = gguf.GGUFWriter(f"{folder}/model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(20000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{token}" for token in range(64)])
    writer.add_token_scores([0.0] * 64)
    writer.add_token_types([1] * 64)
    scaling(writer)
    for name, tensor in model.state_dict().items():
        for theirs, short in NAMES.items():
            name = name.replace(theirs, short)
        values = tensor.numpy()
        if "attn_q." in name or "attn_k." in name:
            values = turned(values, 4 if "attn_q." in name else 2)
        writer.add_tensor(name, numpy.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def linear(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def yarn(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)


def factors(writer):
    writer.add_tensor("rope_freqs.weight", numpy.array([1, 1, 1, 1, 8, 8, 8, 8], numpy.float32))


torch.manual_seed(0)
plain = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 20000.0})).eval()
stretched = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0})).eval()
stretched.load_state_dict(plain.state_dict())
tokens = torch.arange(40)[None]
with torch.no_grad():
    expected = plain(tokens).logits
    difference = (stretched(tokens).logits - expected).abs().max().item()
    print(f"scaling changes the logits by {difference:.1e}")
    assert difference > 1e-4
    for name, scaling in {"none": lambda writer: None, "linear": linear, "yarn": yarn, "rope_freqs": factors}.items():
        write(name, plain, scaling)
        keys = sorted(key for key in gguf.GGUFReader(f"{name}/model.gguf").fields if "rope" in key)
        loaded = AutoModelForCausalLM.from_pretrained(name, gguf_file="model.gguf", dtype=torch.float32).eval()
        apart = (loaded(tokens).logits - expected).abs().max().item()
        print(f"{name}: the file has {keys}; loaded {loaded.config.rope_parameters}; apart from no scaling {apart:.1e}")
        assert apart == 0 and loaded.config.rope_parameters["rope_type"] == "default", "CHANGED: scaling is read"
assert loaded.config.rope_parameters["rope_theta"] == 20000.0
print("rms_norm_eps:", loaded.config.rms_norm_eps)
PY
venv/bin/python scaling.py 2>err.log || { cat err.log; exit 1; }
