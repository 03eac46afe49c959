// hf/config.cpp: which models are known, and what of them the blocks of this library lack.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "base/text/excerpt.h"
#include "config/json.h"
#include "hf/config_defaults.h"
#include "hf/config_fields.h"
#include "hf/rope_json.h"
#include "smp/hf.h"

namespace smp::hf {
namespace {

using base::Json;

/// A model_type, and what the architectures of its config.json may be called; the first is written.
struct Known {
  std::string_view model_type;
  std::array<std::string_view, 3> architectures;
};
constexpr std::array<Known, 10> kKnown{
    {{"llama", {"LlamaForCausalLM", "LlamaModel", ""}},
     {"mistral", {"MistralForCausalLM", "MistralModel", ""}},
     {"qwen2", {"Qwen2ForCausalLM", "Qwen2Model", ""}},
     {"qwen3", {"Qwen3ForCausalLM", "Qwen3Model", ""}},
     {"gemma", {"GemmaForCausalLM", "GemmaModel", ""}},
     {"gpt2", {"GPT2LMHeadModel", "GPT2Model", ""}},
     {"bert", {"BertForMaskedLM", "BertForPreTraining", "BertModel"}},
     {"roberta", {"RobertaForMaskedLM", "RobertaModel", ""}},
     {"t5", {"T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"}},
     {"mt5", {"MT5ForConditionalGeneration", "MT5Model", ""}}}};

std::string known_types() {
  std::string text;
  for (const auto& known : kKnown) {
    text +=
        base::concat(text.empty() ? "" : ", ", known.model_type, " (", known.architectures[0], ")");
  }
  return text;
}

const Known* find_type(std::string_view type) {
  const auto* const found = std::find_if(
      kKnown.begin(), kKnown.end(), [&](const Known& known) { return known.model_type == type; });
  return found == kKnown.end() ? nullptr : found;
}

bool has_architecture(const Known& known, std::string_view architecture) {
  return !architecture.empty() && std::find(known.architectures.begin(), known.architectures.end(),
                                            architecture) != known.architectures.end();
}

bool present(const Json& json, const char* key) {
  return json.contains(key) && !json[key].is_null();
}

/// Returns the model that `json` names by model_type, architecture, or both.
const Known& known_model(const Json& json, const std::string& name) {
  std::string type, architecture;
  if (present(json, "model_type")) type = base::json_member<std::string>(json, "model_type", name);
  if (present(json, "architectures")) {
    const auto all = base::json_member<std::vector<std::string>>(json, "architectures", name);
    if (!all.empty()) architecture = all[0];
  }
  SMP_REQUIRE(!type.empty() || !architecture.empty(), name,
              ": it has neither \"model_type\" nor \"architectures\": no config.json of a model");
  const auto* known = find_type(type);
  for (const auto& one : kKnown) {
    if (type.empty() && has_architecture(one, architecture)) known = &one;
  }
  SMP_REQUIRE_AS(
      UnsupportedError,
      known != nullptr && (architecture.empty() || has_architecture(*known, architecture)), name,
      ": ", architecture.empty() ? "" : "architecture \"", base::excerpt(architecture),
      architecture.empty() ? "" : "\", ", "model_type \"", base::excerpt(type),
      "\" is none of those whose tensors are known: ", known_types());
  return *known;
}

template <class Sizes, class Visitor>
void visit_sizes(Visitor&& visit, Sizes& sizes) {
  using Bare = std::remove_const_t<Sizes>;
  if constexpr (std::is_same_v<Bare, LlamaConfig>) visit_llama(visit, sizes);
  if constexpr (std::is_same_v<Bare, Gpt2Config>) visit_gpt2(visit, sizes);
  if constexpr (std::is_same_v<Bare, BertConfig>) visit_bert(visit, sizes);
  if constexpr (std::is_same_v<Bare, T5Config>) visit_t5(visit, sizes);
}

/// Reads members that are there.
class Reading {
 public:
  Reading(const Json& json, const std::string& name) : json_(json), name_(name) {}
  template <class T>
  void operator()(const char* key, T& member) const {
    if (present(json_, key)) member = base::json_member<T>(json_, key, name_);
  }
  /// A null is told apart from what is missing, which has its default.
  template <class T>
  void operator()(const char* key, std::optional<T>& member) const {
    if (!json_.contains(key)) return;
    member = present(json_, key) ? std::optional<T>(base::json_member<T>(json_, key, name_))
                                 : std::nullopt;
  }
  /// A number or a list.
  void operator()(const char* key, TokenIds& member) const {
    if (!json_.contains(key)) return;
    if (json_[key].is_array()) {
      member = base::json_member<std::vector<std::int64_t>>(json_, key, name_);
    } else {
      member = present(json_, key) ? TokenIds(base::json_member<std::int64_t>(json_, key, name_))
                                   : TokenIds();
    }
  }

 private:
  const Json& json_;
  const std::string& name_;
};

/// Refuses numbers that no model has.
class Checking {
 public:
  explicit Checking(const std::string& name) : name_(name) {}
  void operator()(const char* key, std::int64_t number) const {
    const std::string_view what = key;
    if (what.ends_with("_token_id") || what == "sliding_window") return;
    const bool may_be_none =
        what.ends_with("layers") || what == "n_layer" || what == "type_vocab_size";
    const int least = may_be_none ? 0 : 1;
    SMP_REQUIRE(number >= least, name_, ": ", key, " is ", number, ", expected ", least,
                " or more");
  }
  void operator()(const char* key, const std::optional<std::int64_t>& number) const {
    if (number) (*this)(key, *number);
  }
  template <class T>
  void operator()(const char*, const T&) const {}

 private:
  const std::string& name_;
};

/// Writes all members.
class Writing {
 public:
  explicit Writing(Json& json) : json_(json) {}
  template <class T>
  void operator()(const char* key, const T& member) const {
    json_[key] = member;
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& member) const {
    json_[key] = member ? Json(*member) : Json();
  }
  void operator()(const char* key, const TokenIds& member) const {
    const auto& ids = member.ids();
    json_[key] = ids.size() > 1 ? Json(ids) : ids.empty() ? Json() : Json(ids[0]);
  }

 private:
  Json& json_;
};

/// @throws UnsupportedError  `json` has another value of `key` than `known`
template <class T>
void require_value(const Json& json, const char* key, const T& known, const std::string& name) {
  if (!present(json, key) || json[key] == Json(known)) return;
  throw UnsupportedError(base::concat(name, ": ", key, " = ", base::json_text(json[key]),
                                      " is not supported, only ", base::json_text(Json(known)),
                                      " is"));
}

/// Takes `sliding_window` for what transformers makes of it: one for all layers, or none.
void settle_window(const Json& json, LlamaConfig& sizes, const std::string& name) {
  const bool optional = sizes.model_type == "qwen2" || sizes.model_type == "qwen3";
  if (optional) {
    Json off = false;
    const auto& used = present(json, "use_sliding_window") ? json["use_sliding_window"] : off;
    if (used == Json(false)) sizes.sliding_window.reset();
  } else if (sizes.model_type != "mistral") {
    sizes.sliding_window.reset();
  }
  if (!sizes.sliding_window) return;
  std::vector<std::string> layers;
  if (present(json, "layer_types")) {
    layers = base::json_member<std::vector<std::string>>(json, "layer_types", name);
  } else if (optional) {
    const std::int64_t first =
        present(json, "max_window_layers")
            ? base::json_member<std::int64_t>(json, "max_window_layers", name)
            : 28;
    for (std::int64_t i = 0; i < sizes.num_hidden_layers; ++i) {
      layers.emplace_back(i >= first ? "sliding_attention" : "full_attention");
    }
  }
  const auto sliding = std::count(layers.begin(), layers.end(), "sliding_attention");
  const auto all = static_cast<std::ptrdiff_t>(layers.size());
  SMP_REQUIRE_AS(UnsupportedError, sliding == 0 || sliding == all, name, ": ", sliding, " of ", all,
                 " layers have a sliding window; only the same for all layers is supported");
  if (!layers.empty() && sliding == 0) sizes.sliding_window.reset();
}

void settle(const Json& json, LlamaConfig& sizes, const std::string& name) {
  require_value(json, "use_bidirectional_attention", false, name);
  sizes.rope = read_rope(json, sizes.max_position_embeddings, name);
  settle_window(json, sizes, name);
  // What transformers makes of the first published files.
  if (sizes.is_gemma() && sizes.hidden_act == "gelu") sizes.hidden_act = "gelu_pytorch_tanh";
  static_cast<void>(sizes.layer());
}

void settle(const Json& json, Gpt2Config&, const std::string& name) {
  require_value(json, "add_cross_attention", false, name);
  require_value(json, "scale_attn_by_inverse_layer_idx", false, name);
  require_value(json, "scale_attn_weights", true, name);
}

void settle(const Json& json, BertConfig&, const std::string& name) {
  require_value(json, "position_embedding_type", "absolute", name);
  require_value(json, "add_cross_attention", false, name);
}

void settle(const Json&, T5Config&, const std::string&) {}

std::string_view type_of(const Config::Sizes& sizes) {
  return std::visit(
      [](const auto& own) -> std::string_view {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(own)>, Gpt2Config>) {
          return "gpt2";
        } else {
          return own.model_type;
        }
      },
      sizes);
}

std::string json_of(const Config::Sizes& sizes) {
  const auto* const known = find_type(type_of(sizes));
  SMP_REQUIRE_AS(UnsupportedError, known != nullptr, "hf::Config: model_type \"", type_of(sizes),
                 "\" is none of ", known_types());
  Json json;
  json["architectures"] = {known->architectures[0]};
  json["model_type"] = known->model_type;
  std::visit([&](const auto& own) { visit_sizes(Writing(json), own); }, sizes);
  if (const auto* llama = std::get_if<LlamaConfig>(&sizes)) {
    json["num_key_value_heads"] = llama->kv_heads();
    json["head_dim"] = llama->head_size();
    write_rope(llama->rope, json);
    if (llama->model_type.starts_with("qwen") && llama->sliding_window) {
      json["use_sliding_window"] = true;
      json["max_window_layers"] = 0;
    }
  }
  if (const auto* t5 = std::get_if<T5Config>(&sizes)) {
    json["scale_decoder_outputs"] = t5->scales_outputs();
    json["num_decoder_layers"] = t5->num_decoder_layers.value_or(t5->num_layers);
    json["is_encoder_decoder"] = true;
  }
  return json.dump(2) + "\n";
}

template <class Sizes>
const Sizes& sizes_as(const Config::Sizes& sizes, const char* what) {
  const auto* const own = std::get_if<Sizes>(&sizes);
  SMP_REQUIRE(own != nullptr, "hf::Config: ", what, " of a model of type ", type_of(sizes));
  return *own;
}

}  // namespace

Config::Config(Sizes sizes) : sizes_(std::move(sizes)), json_(json_of(sizes_)) {}

Config Config::read(const std::string& path) {
  std::error_code error;  // which reading the file tells
  const auto file = std::filesystem::is_directory(path, error)
                        ? (std::filesystem::path(path) / "config.json").string()
                        : path;
  return parse(base::read_file(file, base::kMostJsonBytes), file);
}

Config Config::parse(const std::string& text, const std::string& name) {
  const auto json = base::parse_json(text, name);
  SMP_REQUIRE(json.is_object(), name, ": no JSON object, so no config.json of a model");
  const auto& known = known_model(json, name);
  SMP_REQUIRE_AS(UnsupportedError, !present(json, "quantization_config"), name,
                 ": quantization_config: tensors of quantised models are not known");
  auto sizes = default_sizes(known.model_type);
  std::visit(
      [&](auto& own) {
        visit_sizes(Reading(json, name), own);
        visit_sizes(Checking(name), own);
        settle(json, own, name);
      },
      sizes);
  return {std::move(sizes), text};
}

Family Config::family() const noexcept {
  const auto type = type_of(sizes_);
  if (type == "gpt2") return Family::kGpt2;
  if (type == "bert") return Family::kBert;
  if (type == "roberta") return Family::kRoberta;
  return std::holds_alternative<T5Config>(sizes_) ? Family::kT5 : Family::kLlama;
}

const LlamaConfig& Config::llama() const { return sizes_as<LlamaConfig>(sizes_, "llama()"); }
const Gpt2Config& Config::gpt2() const { return sizes_as<Gpt2Config>(sizes_, "gpt2()"); }
const BertConfig& Config::bert() const { return sizes_as<BertConfig>(sizes_, "bert()"); }
const T5Config& Config::t5() const { return sizes_as<T5Config>(sizes_, "t5()"); }

}  // namespace smp::hf
