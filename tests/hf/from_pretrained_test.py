"""from_pretrained_test.py PROGRAM DATA: transformers loads what PROGRAM (test_hf) writes, in each form, without a word: no name
missing or left over, every bit as it was, scores and greedy text as those of the model that it was made of, whose weights lie
in DATA. Skipped (77) where transformers is not installed."""

import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ModuleNotFoundError as error:
    print(f"skipped: {error.name} is not installed: pip install torch transformers safetensors")
    sys.exit(77)

CLASSES = {"gpt2": transformers.GPT2LMHeadModel, "bert": transformers.BertForMaskedLM,
           "roberta": transformers.RobertaForMaskedLM,
           "t5_v1_0": transformers.T5ForConditionalGeneration,
           "t5_v1_1": transformers.T5ForConditionalGeneration}


def scores_of(model, name, reference):
    inputs = {key[6:]: value for key, value in reference.items() if key.startswith("input.")}
    if not name.startswith("t5"):
        inputs.pop("labels")
    with torch.no_grad():
        return model.eval()(**inputs).logits.double(), inputs


def check(folder, name, data):
    kind = CLASSES.get(name, transformers.AutoModelForCausalLM)
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (folder, problem, info[problem])
    narrow = str(folder).endswith(".bf16")
    weights = load_file(data / f"{name}_weights.safetensors")
    parameters = dict(model.named_parameters())
    assert set(weights) == set(parameters), (folder, set(weights) ^ set(parameters))
    for key, value in weights.items():
        expected = value.bfloat16() if narrow else value
        assert parameters[key].dtype == expected.dtype, (folder, key, parameters[key].dtype)
        assert torch.equal(parameters[key], expected), (folder, key)
    if narrow:
        return
    reference = load_file(data / f"{name}_reference.safetensors")
    scores, inputs = scores_of(model, name, reference)
    there = inputs["attention_mask"].bool() if "attention_mask" in inputs else ...
    there = ... if name.startswith("t5") else there
    expected = reference["logits"]
    worst = ((scores - expected)[there].abs().max() / expected[there].abs().max()).item()
    assert worst < 2e-5, (folder, worst)
    text = check_text(model, name, data)
    print(f"{os.path.basename(folder):18} {len(weights):3} tensors, scores within {worst:.0e}{text}")


def check_text(model, name, data):
    """Greedy text of the Llama-shaped models is what it was in float64."""
    generated = load_file(data / "generated_reference.safetensors")
    if name + ".prompt" not in generated:
        return ""
    prompt, expected = generated[name + ".prompt"], generated[name + ".tokens"]
    text = model.double().generate(prompt, attention_mask=(prompt != 0).long(), do_sample=False,
                                   max_new_tokens=14, eos_token_id=1, pad_token_id=0)
    assert torch.equal(text, expected), (name, text, expected)
    return f", {expected.shape[1]} greedy tokens equal"


def main(program, data):
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "--source", "from_pretrained_test"], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "SMP_HF_FOLDER": folder})
        models = sorted(pathlib.Path(folder).iterdir())
        assert len(models) == 40, models
        for model in models:
            check(model, model.name.split(".")[0], pathlib.Path(data))
    print(f"transformers {transformers.__version__} loads {len(models)} folders")


if __name__ == "__main__":
    main(*sys.argv[1:])
