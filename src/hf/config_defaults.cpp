// hf/config_defaults.cpp: arguments of the configuration classes of transformers 5, as far as they
// are not those of LlamaConfig, BertConfig and T5Config, which their structs have.
#include "hf/config_defaults.h"

#include <string>

namespace smp::hf {
namespace {

void set_mistral(LlamaConfig& sizes) {
  sizes.intermediate_size = 14336;
  sizes.num_key_value_heads = 8;
  sizes.max_position_embeddings = 131072;
  sizes.sliding_window = 4096;
}

void set_qwen(LlamaConfig& sizes) {
  sizes.vocab_size = 151936;
  sizes.intermediate_size = 22016;
  sizes.num_key_value_heads = 32;
  sizes.max_position_embeddings = 32768;
  sizes.sliding_window = 4096;
}

void set_gemma(LlamaConfig& sizes) {
  sizes.vocab_size = 256000;
  sizes.hidden_size = 3072;
  sizes.intermediate_size = 24576;
  sizes.num_hidden_layers = 28;
  sizes.num_attention_heads = 16;
  sizes.num_key_value_heads = 16;
  sizes.head_dim = 256;
  sizes.max_position_embeddings = 8192;
  sizes.tie_word_embeddings = true;
  sizes.hidden_act = "gelu_pytorch_tanh";
  sizes.pad_token_id = 0;
  sizes.eos_token_id = 1;
  sizes.bos_token_id = 2;
}

LlamaConfig default_llama(std::string_view type) {
  LlamaConfig sizes;
  sizes.model_type = type;
  if (type == "llama" || type == "mistral") {
    sizes.bos_token_id = 1;
    sizes.eos_token_id = 2;
  }
  if (type == "mistral") set_mistral(sizes);
  if (type == "qwen2" || type == "qwen3") set_qwen(sizes);
  if (type == "qwen3") sizes.head_dim = 128;
  if (type == "gemma") set_gemma(sizes);
  return sizes;
}

BertConfig default_bert(std::string_view type) {
  BertConfig sizes;
  sizes.model_type = type;
  if (type != "roberta") return sizes;
  sizes.vocab_size = 50265;
  sizes.bos_token_id = 0;
  sizes.pad_token_id = 1;
  sizes.eos_token_id = 2;
  return sizes;
}

T5Config default_t5(std::string_view type) {
  T5Config sizes;
  sizes.model_type = type;
  if (type != "mt5") return sizes;
  sizes.vocab_size = 250112;
  sizes.d_ff = 1024;
  sizes.num_layers = 8;
  sizes.num_heads = 6;
  sizes.feed_forward_proj = "gated-gelu";
  sizes.tie_word_embeddings = false;
  return sizes;
}

}  // namespace

Config::Sizes default_sizes(std::string_view model_type) {
  if (model_type == "gpt2") return Gpt2Config();
  if (model_type == "bert" || model_type == "roberta") return default_bert(model_type);
  if (model_type == "t5" || model_type == "mt5") return default_t5(model_type);
  return default_llama(model_type);
}

}  // namespace smp::hf
