"""Hugging Face's way of what perf/text.cpp measures, which starts this: peer.py THREADS

Answers each line by the seconds that it took:
  text FOLDER CONTEXT      reads FOLDER/corpus.jsonl and FOLDER/tokenizer.json
  epoch SEED ROWS          shuffles, tokenises and packs it, and makes batches; also their tokens, with what does not fill a row
  model FOLDER WIDTH INNER HEADS LAYERS VOCABULARY   makes a Llama, and saves it there
  load FOLDER              loads it again
  generate FOLDER NEW      goes on with the rows of FOLDER/prompt.json; the tokens go to FOLDER/generated.json
"""

import json
import os
import sys
import time

THREADS = int(sys.argv[1])
os.environ |= {"RAYON_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import datasets
import torch
from safetensors.torch import load_model
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM


class Text:
    def __init__(self, folder: str, context: str) -> None:
        self.context = int(context)
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.end = self.tokenizer.token_to_id("</s>")
        self.source = datasets.load_dataset("json", data_files=f"{folder}/corpus.jsonl", split="train", cache_dir=folder)

    def epoch(self, seed: str, rows: str) -> int:
        own = {"batched": True, "keep_in_memory": True, "load_from_cache_file": False}
        order = self.source.shuffle(seed=int(seed), keep_in_memory=True, load_from_cache_file=False)
        tokens = order.map(self.tokenised, remove_columns=["text"], **own)
        packed = tokens.map(self.packed, remove_columns=["tokens"], **own).with_format("torch")
        count = sum(batch["row"].numel() for batch in packed.iter(batch_size=int(rows)))
        return count + self.left

    def tokenised(self, batch: dict) -> dict:
        return {"tokens": [one.ids + [self.end] for one in self.tokenizer.encode_batch(batch["text"])]}

    def packed(self, batch: dict) -> dict:
        line = [token for tokens in batch["tokens"] for token in tokens]
        whole = len(line) // self.context * self.context
        self.left += len(line) - whole
        return {"row": [line[at : at + self.context] for at in range(0, whole, self.context)]}


def made(folder: str, *sizes: str) -> LlamaForCausalLM:
    width, inner, heads, layers, vocabulary = map(int, sizes)
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=512, initializer_range=0.1,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    return model.eval()


def generated(model: LlamaForCausalLM, folder: str, new: str) -> None:
    prompt = torch.tensor(json.load(open(f"{folder}/prompt.json")))
    with torch.inference_mode():
        text = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=int(new), do_sample=False, use_cache=True
        )
    json.dump(text[:, prompt.size(1) :].tolist(), open(f"{folder}/generated.json", "w"))


def main() -> None:
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    print("ready", flush=True)
    text, model = None, None
    for line in sys.stdin:
        what, *words = line.split()
        start, more = time.perf_counter(), 0
        match what:
            case "text":
                text = Text(*words)
            case "epoch":
                text.left = 0
                more = text.epoch(*words)
            case "model":
                model = made(*words)
            case "load":
                load_model(model, f"{words[0]}/model.safetensors")
            case "generate":
                generated(model, *words)
        print(time.perf_counter() - start, flush=True)
        if what == "epoch":
            print(more, flush=True)


main()
