#!/usr/bin/env python3
"""Writes tests/data/<model>_{weights,reference}.safetensors: tiny models of Hugging Face with random
weights, what they compute for one batch, and the gradient of every parameter, in float64.

    pip install torch transformers safetensors && tests/data/make_references.py

Weights are rounded to float32. The files carry the versions that made them in their metadata.
"""
import contextlib
import os

import safetensors.torch
import torch
import transformers
from transformers import (BertConfig, BertForMaskedLM, GemmaConfig, GemmaForCausalLM, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM, RobertaConfig,
                          RobertaForMaskedLM, T5Config, T5ForConditionalGeneration)
from transformers.generation.logits_process import (TemperatureLogitsWarper, TopKLogitsWarper,
                                                    TopPLogitsWarper)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = os.path.dirname(os.path.abspath(__file__))
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


def t5(**options):
    config = T5Config(vocab_size=23, d_model=8, d_kv=5, d_ff=12, num_layers=2, num_decoder_layers=2,
                      num_heads=2, relative_attention_num_buckets=8,
                      relative_attention_max_distance=12, dropout_rate=0.0,
                      decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **options)
    model = T5ForConditionalGeneration(config)
    if not options["tie_word_embeddings"]:
        # transformers 5 ties the head in any case; published 1.1 checkpoints have one of their own.
        model.lm_head = torch.nn.Linear(config.d_model, config.vocab_size, bias=False)
    return model


# Sizes of the Llama-shaped models: eight elements a head, so that a head has several frequencies.
DECODER = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
           "num_attention_heads": 4, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 1,
           "pad_token_id": 0, "attn_implementation": "sdpa"}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def decoders():
    """The Llama-shaped models by name. Gemma's table is tied in every published model."""
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**DECODER, num_key_value_heads=4)),
        "llama3": LlamaForCausalLM(LlamaConfig(**DECODER, num_key_value_heads=2,
                                               tie_word_embeddings=True, rope_parameters=LLAMA3)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**DECODER, num_key_value_heads=2)),
        "mistral": MistralForCausalLM(MistralConfig(**DECODER, num_key_value_heads=1,
                                                    sliding_window=3)),
        "gemma": GemmaForCausalLM(GemmaConfig(**DECODER, num_key_value_heads=2)),
    }


# What test and reference call the ways to stretch frequencies: of a model with 64 positions.
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn_mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.1,
                    "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False,
                    "original_max_position_embeddings": 64},
}


def write_ropes():
    """Frequencies [D/2] of each way for 64 elements a head and 100 tokens, and the factor."""
    values = {}
    for name, parameters in ROPES.items():
        config = LlamaConfig(hidden_size=64, num_attention_heads=1, max_position_embeddings=64,
                             rope_parameters={**parameters, "rope_theta": 10000.0})
        if name == "default":
            rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
            frequencies, factor = rotary.compute_default_rope_parameters(config)
        else:
            frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=100)
        values[name + ".frequencies"] = frequencies
        values[name + ".factor"] = torch.tensor(factor, dtype=torch.float64)
    path = os.path.join(FOLDER, "rope_reference.safetensors")
    safetensors.torch.save_file(values, path, {"format": "pt", "versions": str(VERSIONS)})


def randomise(model, generator):
    """No bias is zero and no norm's weight one, so that leaving one out shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() or "ln_" in name
            scale = 0.3 if is_norm else 0.6
            parameter.copy_(noise * scale + (1.0 if is_norm and name.endswith("weight") else 0.0))


def tokens(generator, *shape):
    return torch.randint(2, 23, shape, generator=generator)


def loss_of(logits, labels, shifted):
    """The model's own loss, but in float64: that of GPT-2 is float32 in any case."""
    if shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@contextlib.contextmanager
def casting(to, as_float):
    before = torch.Tensor.to, torch.Tensor.float
    torch.Tensor.to, torch.Tensor.float = to, as_float
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = before


def nothing_in_float32():
    """T5 casts to float32 for norms and softmax whatever the model's type; 1e-7 would hide mistakes."""
    to = torch.Tensor.to

    def keep(tensor, *args, **kwargs):
        narrows = tensor.dtype == torch.float64 and torch.float32 in (*args, *kwargs.values())
        return tensor if narrows else to(tensor, *args, **kwargs)

    return casting(keep, lambda tensor: keep(tensor, torch.float32))


def keep_positions_in_float32(model):
    """The table of rotary positions is made in float32 in every model."""
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    if rotary is None:
        return
    forward, to, as_float = rotary.forward, torch.Tensor.to, torch.Tensor.float

    def in_float32(*args, **kwargs):
        with casting(to, as_float):
            return forward(*args, **kwargs)

    rotary.forward = in_float32


def write(name, model, generator, inputs):
    randomise(model, generator)
    model = model.double().eval()
    keep_positions_in_float32(model)
    with nothing_in_float32():
        output = model(**inputs)
    loss = loss_of(output.logits, inputs["labels"], shifted=name not in ("t5_v1_0", "t5_v1_1", "bert", "roberta"))
    torch.testing.assert_close(loss.float(), output.loss.float())
    loss.backward()
    weights = {key: parameter.detach().float().contiguous()
               for key, parameter in model.named_parameters()}
    reference = {f"grad.{key}": parameter.grad for key, parameter in model.named_parameters()}
    reference.update(logits=output.logits, loss=loss)
    reference.update({f"input.{key}": value for key, value in inputs.items()})
    reference = {key: value.detach().clone().contiguous() for key, value in reference.items()}
    metadata = {"format": "pt", "versions": str(VERSIONS)}
    path = os.path.join(FOLDER, name)
    safetensors.torch.save_file(weights, path + "_weights.safetensors", metadata)
    safetensors.torch.save_file(reference, path + "_reference.safetensors", metadata)


def write_generated():
    """What the Llama-shaped models go on with, greedily, after their weights were written: prompts
    [3, 6] with padding on the left, and all 20 tokens. What is left of scores before one is drawn."""
    values = {}
    generator = torch.Generator().manual_seed(1)
    for name, model in decoders().items():
        path = os.path.join(FOLDER, name + "_weights.safetensors")
        model.load_state_dict(safetensors.torch.load_file(path), strict=False)
        model.tie_weights()
        model = model.double().eval()
        keep_positions_in_float32(model)
        prompt = tokens(generator, 3, 6)
        prompt[1, :2] = 0
        prompt[2, :5] = 0
        with nothing_in_float32():
            text = model.generate(prompt, attention_mask=(prompt != 0).long(), do_sample=False,
                                  max_new_tokens=14)
        values[name + ".prompt"] = prompt
        values[name + ".tokens"] = text
    scores = torch.randn(4, 23, generator=generator) * 3
    left = TemperatureLogitsWarper(0.7)(None, scores)
    left = TopKLogitsWarper(9)(None, left)
    left = TopPLogitsWarper(0.8)(None, left)
    values["sampling.scores"], values["sampling.left"] = scores, left.softmax(-1)
    path = os.path.join(FOLDER, "generated_reference.safetensors")
    safetensors.torch.save_file(values, path, {"format": "pt", "versions": str(VERSIONS)})


# How frequencies are stretched in a whole model, for contexts of which half is beyond 6 positions.
STRETCHED = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6},
}


def trained_models():
    """Models by name, with that of the files that have their weights and inputs."""
    models = {name: (model, name) for name, model in decoders().items()}
    for name, parameters in STRETCHED.items():
        config = LlamaConfig(**DECODER, num_key_value_heads=4, max_position_embeddings=6,
                             rope_parameters={**parameters, "rope_theta": 10000.0})
        models[name] = (LlamaForCausalLM(config), "llama")
    return models


def write_trained():
    """What eight steps of SGD in float32 make of the Llama-shaped models: losses and parameters."""
    values = {}
    for name, (model, files) in trained_models().items():
        path = os.path.join(FOLDER, files)
        model.load_state_dict(safetensors.torch.load_file(path + "_weights.safetensors"), strict=False)
        model.tie_weights()
        reference = safetensors.torch.load_file(path + "_reference.safetensors")
        inputs = {key[len("input."):]: value for key, value in reference.items()
                  if key.startswith("input.")}
        # At a larger rate this Gemma's float32 and float64 part by themselves, by 2 % in eight steps.
        rate = 0.001 if name == "gemma" else 0.01
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = model.train()(**inputs).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        values[name + ".losses"] = torch.stack(losses)
        values[name + ".rate"] = torch.tensor(rate, dtype=torch.float64)
        values.update((f"{name}.{key}", parameter.detach().clone())
                      for key, parameter in model.named_parameters())
    path = os.path.join(FOLDER, "trained_reference.safetensors")
    safetensors.torch.save_file(values, path, {"format": "pt", "versions": str(VERSIONS)})


def t5_inputs(generator):
    inputs = tokens(generator, 3, 20)
    inputs[1, 15:] = 0
    inputs[2, 3:] = 0
    labels = tokens(generator, 3, 17)
    labels[0, 12:] = -100
    return {"input_ids": inputs, "attention_mask": (inputs != 0).long(), "labels": labels}


def gpt2_inputs(generator):
    inputs = tokens(generator, 3, 10)
    return {"input_ids": inputs, "labels": inputs}


def decoder_inputs(generator):
    inputs = tokens(generator, 3, 12)
    inputs[1, 9:] = 0
    return {"input_ids": inputs, "attention_mask": (inputs != 0).long(),
            "labels": inputs.masked_fill(inputs == 0, -100)}


def bert_inputs(generator):
    inputs = tokens(generator, 3, 10)
    inputs[2, 6:] = 0
    kinds = (torch.arange(10) > 4).long().expand(3, 10).contiguous()
    labels = tokens(generator, 3, 10)
    labels[inputs == 0] = -100
    return {"input_ids": inputs, "attention_mask": (inputs != 0).long(), "token_type_ids": kinds,
            "labels": labels}


def roberta_inputs(generator):
    inputs = tokens(generator, 3, 10)
    inputs[2, 6:] = 1
    labels = tokens(generator, 3, 10)
    labels[inputs == 1] = -100
    return {"input_ids": inputs, "attention_mask": (inputs != 1).long(), "labels": labels}


def main():
    models = {
        "t5_v1_0": (t5(feed_forward_proj="relu", tie_word_embeddings=True), t5_inputs),
        "t5_v1_1": (t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False), t5_inputs),
        "gpt2": (GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=10, n_embd=8, n_layer=2,
                                            n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                                            attn_pdrop=0.0, bos_token_id=1, eos_token_id=1)),
                 gpt2_inputs),
        "bert": (BertForMaskedLM(BertConfig(vocab_size=23, hidden_size=8, num_hidden_layers=2,
                                            num_attention_heads=2, intermediate_size=12,
                                            max_position_embeddings=10, pad_token_id=0,
                                            hidden_dropout_prob=0.0,
                                            attention_probs_dropout_prob=0.0)), bert_inputs),
    }
    models.update((name, (model, decoder_inputs)) for name, model in decoders().items())
    models["roberta"] = (RobertaForMaskedLM(RobertaConfig(
        vocab_size=23, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=14, type_vocab_size=1, pad_token_id=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)), roberta_inputs)
    for seed, (name, (model, inputs)) in enumerate(models.items()):
        generator = torch.Generator().manual_seed(seed)
        write(name, model, generator, inputs(generator))
    write_ropes()
    write_generated()
    write_trained()


if __name__ == "__main__":
    main()
