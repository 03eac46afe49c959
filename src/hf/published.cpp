// hf/published.cpp: what lies in the files of each family.
#include <string>
#include <utility>

#include "base/check.h"
#include "smp/hf.h"

namespace smp::hf {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Collects tensors below a path.
class Tensors {
 public:
  void add(const std::string& name, Sizes sizes) { all_.push_back({name, std::move(sizes)}); }
  /// Adds `module`.weight [outputs, inputs], and a bias if wanted.
  void linear(const std::string& module, std::int64_t outputs, std::int64_t inputs, bool bias) {
    add(module + ".weight", {outputs, inputs});
    if (bias) add(module + ".bias", {outputs});
  }
  /// Adds one as GPT-2's, [inputs, outputs].
  void turned(const std::string& module, std::int64_t outputs, std::int64_t inputs) {
    add(module + ".weight", {inputs, outputs});
    add(module + ".bias", {outputs});
  }
  void norm(const std::string& module, std::int64_t width, bool bias) {
    add(module + ".weight", {width});
    if (bias) add(module + ".bias", {width});
  }
  std::vector<PublishedTensor> take() && { return std::move(all_); }

 private:
  std::vector<PublishedTensor> all_;
};

void add_all(Tensors& to, const LlamaConfig& sizes) {
  const auto width = sizes.hidden_size, head = sizes.head_size();
  const auto queries = sizes.num_attention_heads * head, keys = sizes.kv_heads() * head;
  const bool bias = sizes.attention_bias || sizes.model_type == "qwen2";
  to.add("model.embed_tokens.weight", {sizes.vocab_size, width});
  for (std::int64_t i = 0; i < sizes.num_hidden_layers; ++i) {
    const auto layer = base::concat("model.layers.", i, ".");
    to.linear(layer + "self_attn.q_proj", queries, width, bias);
    to.linear(layer + "self_attn.k_proj", keys, width, bias);
    to.linear(layer + "self_attn.v_proj", keys, width, bias);
    to.linear(layer + "self_attn.o_proj", width, queries, sizes.attention_bias);
    if (sizes.qk_norm()) {
      to.norm(layer + "self_attn.q_norm", head, false);
      to.norm(layer + "self_attn.k_norm", head, false);
    }
    to.linear(layer + "mlp.gate_proj", sizes.intermediate_size, width, sizes.mlp_bias);
    to.linear(layer + "mlp.up_proj", sizes.intermediate_size, width, sizes.mlp_bias);
    to.linear(layer + "mlp.down_proj", width, sizes.intermediate_size, sizes.mlp_bias);
    to.norm(layer + "input_layernorm", width, false);
    to.norm(layer + "post_attention_layernorm", width, false);
  }
  to.norm("model.norm", width, false);
  if (!sizes.tie_word_embeddings) to.linear("lm_head", sizes.vocab_size, width, false);
}

void add_all(Tensors& to, const Gpt2Config& sizes) {
  const auto width = sizes.n_embd, inner = sizes.n_inner.value_or(4 * width);
  to.add("transformer.wte.weight", {sizes.vocab_size, width});
  to.add("transformer.wpe.weight", {sizes.n_positions, width});
  for (std::int64_t i = 0; i < sizes.n_layer; ++i) {
    const auto layer = base::concat("transformer.h.", i, ".");
    to.norm(layer + "ln_1", width, true);
    to.turned(layer + "attn.c_attn", 3 * width, width);
    to.turned(layer + "attn.c_proj", width, width);
    to.norm(layer + "ln_2", width, true);
    to.turned(layer + "mlp.c_fc", inner, width);
    to.turned(layer + "mlp.c_proj", width, inner);
  }
  to.norm("transformer.ln_f", width, true);
  if (!sizes.tie_word_embeddings) to.linear("lm_head", sizes.vocab_size, width, false);
}

void add_all(Tensors& to, const BertConfig& sizes) {
  const auto width = sizes.hidden_size;
  const bool roberta = sizes.model_type == "roberta";
  const auto base = sizes.model_type + ".";
  to.add(base + "embeddings.word_embeddings.weight", {sizes.vocab_size, width});
  to.add(base + "embeddings.position_embeddings.weight", {sizes.max_position_embeddings, width});
  to.add(base + "embeddings.token_type_embeddings.weight", {sizes.type_vocab_size, width});
  to.norm(base + "embeddings.LayerNorm", width, true);
  for (std::int64_t i = 0; i < sizes.num_hidden_layers; ++i) {
    const auto layer = base::concat(base, "encoder.layer.", i, ".");
    for (const char* part : {"query", "key", "value"}) {
      to.linear(layer + "attention.self." + part, width, width, true);
    }
    to.linear(layer + "attention.output.dense", width, width, true);
    to.norm(layer + "attention.output.LayerNorm", width, true);
    to.linear(layer + "intermediate.dense", sizes.intermediate_size, width, true);
    to.linear(layer + "output.dense", width, sizes.intermediate_size, true);
    to.norm(layer + "output.LayerNorm", width, true);
  }
  const std::string head = roberta ? "lm_head" : "cls.predictions";
  to.linear(head + (roberta ? ".dense" : ".transform.dense"), width, width, true);
  to.norm(head + (roberta ? ".layer_norm" : ".transform.LayerNorm"), width, true);
  to.add(head + ".bias", {sizes.vocab_size});
  if (!sizes.tie_word_embeddings) to.add(head + ".decoder.weight", {sizes.vocab_size, width});
}

/// Adds the layers of an encoder or, with attention to it, of a decoder.
void add_stack(Tensors& to, const T5Config& sizes, const std::string& stack, std::int64_t blocks,
               bool decoder) {
  const auto inner = sizes.num_heads * sizes.d_kv, width = sizes.d_model;
  const auto attention = [&](const std::string& module) {
    for (const char* part : {".q", ".k", ".v"}) to.linear(module + part, inner, width, false);
    to.linear(module + ".o", width, inner, false);
  };
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto layer = base::concat(stack, ".block.", i, ".layer.");
    attention(layer + "0.SelfAttention");
    if (i == 0) {
      to.add(layer + "0.SelfAttention.relative_attention_bias.weight",
             {sizes.relative_attention_num_buckets, sizes.num_heads});
    }
    to.norm(layer + "0.layer_norm", width, false);
    if (decoder) {
      attention(layer + "1.EncDecAttention");
      to.norm(layer + "1.layer_norm", width, false);
    }
    const auto last = layer + (decoder ? "2" : "1");
    if (sizes.is_gated()) {
      to.linear(last + ".DenseReluDense.wi_0", sizes.d_ff, width, false);
      to.linear(last + ".DenseReluDense.wi_1", sizes.d_ff, width, false);
    } else {
      to.linear(last + ".DenseReluDense.wi", sizes.d_ff, width, false);
    }
    to.linear(last + ".DenseReluDense.wo", width, sizes.d_ff, false);
    to.norm(last + ".layer_norm", width, false);
  }
  to.norm(stack + ".final_layer_norm", width, false);
}

void add_all(Tensors& to, const T5Config& sizes) {
  to.add("shared.weight", {sizes.vocab_size, sizes.d_model});
  add_stack(to, sizes, "encoder", sizes.num_layers, false);
  add_stack(to, sizes, "decoder", sizes.num_decoder_layers.value_or(sizes.num_layers), true);
  if (!sizes.tie_word_embeddings) to.linear("lm_head", sizes.vocab_size, sizes.d_model, false);
}

}  // namespace

std::vector<PublishedTensor> published_tensors(const Config& config) {
  Tensors tensors;
  std::visit([&](const auto& sizes) { add_all(tensors, sizes); }, config.sizes());
  return std::move(tensors).take();
}

}  // namespace smp::hf
