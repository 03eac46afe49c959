// nemo/model_section.cpp: sizes and kind of the model, as a config.json of transformers.
#include <cstdint>
#include <optional>
#include <string>

#include "base/check.h"
#include "nemo/sections.h"

namespace smp::nemo {
namespace {

using base::Json;

class ModelSection {
 public:
  ModelSection(NemoKeys& keys, Translation& into) : keys_(keys), into_(into) {}

  void translate() {
    const auto layers = size("num_layers"), width = size("hidden_size"),
               heads = size("num_attention_heads");
    if (!layers || !width || !heads) {
      if (layers || width || heads)
        lose(
            "a model without all of num_layers, hidden_size and "
            "num_attention_heads: there is no config.json of it");
      return;
    }
    read_kind();
    const auto inner = size("ffn_hidden_size").value_or(4 * *width);
    if (is_llama()) {
      llama(*layers, *width, *heads, inner);
    } else if (is_gpt2()) {
      gpt2(*layers, *width, *heads, inner);
    } else {
      lose("the model (", norm_, ", ", activation_, ", positions ", positions_, ", ",
           has_bias_ ? "biases" : "no biases",
           "): neither a Llama (rmsnorm, swiglu, rope, no biases) nor a GPT-2 (layernorm, gelu, "
           "learned_absolute, biases); write it as a module, and its sizes by hand");
      return;
    }
    vocabulary();
    dropouts();
  }

 private:
  template <class... Parts>
  void lose(const Parts&... parts) {
    into_.lost.push_back(base::concat(parts...));
  }

  static std::string in_nemo(const char* key) { return base::concat("model.", key); }
  static std::string in_megatron(const char* key) { return base::concat("language_model.", key); }

  template <class T>
  std::optional<NemoKeys::Found<T>> find(const char* key) {
    return keys_.find<T>({in_nemo(key).c_str(), in_megatron(key).c_str(), key});
  }
  template <class T>
  T value_or(const char* key, T other) {
    const auto found = find<T>(key);
    return found ? found->value : other;
  }
  std::optional<NemoKeys::Found<std::int64_t>> count(const char* key) {
    return keys_.find_count({in_nemo(key).c_str(), in_megatron(key).c_str(), key});
  }
  std::optional<std::int64_t> size(const char* key) {
    const auto found = count(key);
    return found ? std::optional(found->value) : std::nullopt;
  }

  void read_kind() {
    norm_ = value_or<std::string>("normalization", "layernorm");
    if (norm_ == "RMSNorm") norm_ = "rmsnorm";  // Megatron-LM
    if (norm_ == "LayerNorm") norm_ = "layernorm";
    activation_ =
        value_or<std::string>("activation", value_or<bool>("swiglu", false) ? "swiglu" : "gelu");
    if (activation_ == "fast-swiglu") activation_ = "swiglu";
    positions_ = value_or<std::string>(
        "position_embedding_type",
        value_or<bool>("use_rotary_position_embeddings", false) ? "rope" : "learned_absolute");
    has_bias_ = value_or<bool>("bias", value_or<bool>("add_bias_linear", true));
    const auto block = find<std::string>("transformer_block_type");
    if (block && block->value != "pre_ln") {
      lose(block->text(), ": norms are before attention and MLP");
    }
  }

  bool is_llama() const {
    return norm_ == "rmsnorm" && activation_ == "swiglu" && positions_ == "rope" && !has_bias_;
  }
  bool is_gpt2() const {
    return norm_ == "layernorm" && activation_ == "gelu" && positions_ == "learned_absolute" &&
           has_bias_;
  }

  bool ties() {
    const auto tied = find<bool>("share_embeddings_and_output_weights");
    const auto untied = find<bool>("untie_embeddings_and_output_weights");
    return tied ? tied->value : !(untied && untied->value);
  }

  void llama(std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t inner) {
    Json model = {{"model_type", "llama"},
                  {"architectures", {"LlamaForCausalLM"}},
                  {"hidden_size", width},
                  {"intermediate_size", inner},
                  {"num_hidden_layers", layers},
                  {"num_attention_heads", heads},
                  {"num_key_value_heads", size("num_query_groups").value_or(heads)}};
    if (const auto head = size("kv_channels")) model["head_dim"] = *head;
    model["max_position_embeddings"] = positions();
    model["rms_norm_eps"] = value_or<double>("layernorm_epsilon", 1e-5);
    model["rope_theta"] = value_or<double>("rotary_base", 10000);
    if (const auto stretched = find<double>("seq_len_interpolation_factor")) {
      model["rope_scaling"] = {{"rope_type", "linear"}, {"factor", stretched->value}};
    }
    const auto turned = keys_.find<double>(
        {"model.rotary_percentage", "language_model.rotary_percent", "rotary_percent"});
    if (turned && turned->value != 1) lose(turned->text(), ": all of a head is turned");
    model["hidden_act"] = "silu";
    finish(std::move(model));
  }

  void gpt2(std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t inner) {
    const bool by_tanh = value_or<bool>("openai_gelu", false);
    Json model = {{"model_type", "gpt2"},
                  {"architectures", {"GPT2LMHeadModel"}},
                  {"n_embd", width},
                  {"n_inner", inner},
                  {"n_layer", layers},
                  {"n_head", heads},
                  {"n_positions", positions()},
                  {"layer_norm_epsilon", value_or<double>("layernorm_epsilon", 1e-5)},
                  {"activation_function", by_tanh ? "gelu_new" : "gelu"}};
    const auto groups = count("num_query_groups");
    if (groups && groups->value != heads) lose(groups->text(), ": a GPT-2 has as many as heads");
    const auto head = count("kv_channels");
    if (head && head->value * heads != width) {
      lose(head->text(), ": heads of a GPT-2 are of hidden_size / num_attention_heads");
    }
    finish(std::move(model));
  }

  std::int64_t positions() {
    return size("max_position_embeddings")
        .value_or(into_.recipe.value("context", std::int64_t{2048}));
  }

  void finish(Json model) {
    model["initializer_range"] = value_or<double>("init_method_std", 0.02);
    model["tie_word_embeddings"] = ties();
    into_.model = std::move(model);
  }

  void vocabulary() {
    const auto all = keys_.find_count({"model.override_vocab_size", "vocab_size",
                                       "model.tokenizer.vocab_size", "padded_vocab_size"});
    if (all) {
      into_.model["vocab_size"] = all->value;
    } else {
      lose(
          "vocab_size: the tokenizer's, which is not in the configuration; write it into "
          "config.json");
    }
  }

  void dropouts() {
    const auto attention = value_or<double>("attention_dropout", 0);
    const auto hidden = value_or<double>("hidden_dropout", 0);
    const auto inner = value_or<double>("ffn_dropout", 0);
    if (is_llama()) {
      into_.model["attention_dropout"] = attention;
      if (hidden > 0 || inner > 0) {
        lose("hidden_dropout = ", hidden, ", ffn_dropout = ", inner, ": a Llama has none there");
      }
    } else {
      into_.model["attn_pdrop"] = attention;
      into_.model["resid_pdrop"] = hidden;
      into_.model["embd_pdrop"] = hidden;
      if (inner > 0) lose("ffn_dropout = ", inner, ": a GPT-2 has none there");
    }
  }

  NemoKeys& keys_;
  Translation& into_;
  std::string norm_, activation_, positions_;
  bool has_bias_ = true;
};

}  // namespace

void translate_model(NemoKeys& keys, Translation& into) { ModelSection(keys, into).translate(); }

}  // namespace smp::nemo
