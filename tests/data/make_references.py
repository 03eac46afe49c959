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
from transformers import (BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config,
                          T5ForConditionalGeneration)

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
def nothing_in_float32():
    """T5 casts to float32 for norms and softmax whatever the model's type; 1e-7 would hide mistakes."""
    to, as_float = torch.Tensor.to, torch.Tensor.float

    def keep(tensor, *args, **kwargs):
        narrows = tensor.dtype == torch.float64 and torch.float32 in (*args, *kwargs.values())
        return tensor if narrows else to(tensor, *args, **kwargs)

    torch.Tensor.to = keep
    torch.Tensor.float = lambda tensor: keep(tensor, torch.float32)
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = to, as_float


def write(name, model, generator, inputs):
    randomise(model, generator)
    model = model.double().eval()
    with nothing_in_float32():
        output = model(**inputs)
    loss = loss_of(output.logits, inputs["labels"], shifted=name == "gpt2")
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


def bert_inputs(generator):
    inputs = tokens(generator, 3, 10)
    inputs[2, 6:] = 0
    kinds = (torch.arange(10) > 4).long().expand(3, 10).contiguous()
    labels = tokens(generator, 3, 10)
    labels[inputs == 0] = -100
    return {"input_ids": inputs, "attention_mask": (inputs != 0).long(), "token_type_ids": kinds,
            "labels": labels}


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
    for seed, (name, (model, inputs)) in enumerate(models.items()):
        generator = torch.Generator().manual_seed(seed)
        write(name, model, generator, inputs(generator))


if __name__ == "__main__":
    main()
