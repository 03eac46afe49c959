// hf/rope_json.cpp: one table of scalings.
#include "hf/rope_json.h"

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/text/excerpt.h"

namespace smp::hf {
namespace {

using base::Json;
using nn::RotaryScaling;

constexpr std::array<std::pair<std::string_view, RotaryScaling>, 5> kScalings{
    {{"default", RotaryScaling::kDefault},
     {"linear", RotaryScaling::kLinear},
     {"dynamic", RotaryScaling::kDynamic},
     {"llama3", RotaryScaling::kLlama3},
     {"yarn", RotaryScaling::kYarn}}};

RotaryScaling scaling_of(const std::string& text, const std::string& name) {
  std::string known;
  for (const auto& [own, scaling] : kScalings) {
    if (own == text) return scaling;
    known += base::concat(known.empty() ? "" : ", ", own);
  }
  throw UnsupportedError(base::concat(name, ": rope_type \"", text, "\" is none of ", known));
}

bool has(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && !object[key].is_null();
}

/// Refuses what transformers would: a scaling without its numbers would be another one here.
void require_members(const Json& from, const std::string& type, const std::string& name) {
  std::vector<const char*> needed;
  if (type != "default") needed.push_back("factor");
  if (type == "llama3") needed.insert(needed.end(), {"low_freq_factor", "high_freq_factor"});
  for (const char* const key : needed) {
    const bool there = has(from, key) || (type == "yarn" && from.contains(key));
    SMP_REQUIRE(there, name, ": rope_type \"", type, "\" needs \"", key, "\"");
  }
}

/// Reads the ways to stretch frequencies, whose members have the same names in both forms.
void read_scaling(const Json& from, nn::RotaryEmbeddingOptions& rope, const std::string& name) {
  const auto number = [&](const char* key, double otherwise) {
    return has(from, key) ? base::json_member<double>(from, key, name) : otherwise;
  };
  const auto optional = [&](const char* key) {
    return has(from, key) ? std::optional(base::json_member<double>(from, key, name))
                          : std::nullopt;
  };
  rope.factor(number("factor", 1));
  rope.low_freq_factor(number("low_freq_factor", 1))
      .high_freq_factor(number("high_freq_factor", 4));
  rope.beta_fast(number("beta_fast", 32)).beta_slow(number("beta_slow", 1));
  rope.attention_factor(optional("attention_factor")).mscale(optional("mscale"));
  rope.mscale_all_dim(optional("mscale_all_dim"));
  if (has(from, "truncate")) rope.truncate(base::json_member<bool>(from, "truncate", name));
  if (has(from, "original_max_position_embeddings")) {
    rope.original_max_positions(
        base::json_member<std::int64_t>(from, "original_max_position_embeddings", name));
  }
  const char* const type = has(from, "rope_type") ? "rope_type" : "type";
  if (!has(from, type)) return;
  const auto text = base::json_member<std::string>(from, type, name);
  rope.scaling(scaling_of(text, name));
  require_members(from, text, name);
  if (has(from, "factor") || rope.scaling() != RotaryScaling::kYarn) return;
  // A null: how many times the original context the model has.
  rope.factor(static_cast<double>(rope.max_positions()) /
              static_cast<double>(rope.original_max_positions()));
}

Json scaling_json(const nn::RotaryEmbeddingOptions& rope) {
  Json json;
  for (const auto& [text, scaling] : kScalings) {
    if (scaling == rope.scaling()) json["rope_type"] = text;
  }
  if (rope.scaling() == RotaryScaling::kDefault) return json;
  json["factor"] = rope.factor();
  const bool llama3 = rope.scaling() == RotaryScaling::kLlama3;
  const bool yarn = rope.scaling() == RotaryScaling::kYarn;
  if (llama3 || yarn) json["original_max_position_embeddings"] = rope.original_max_positions();
  if (llama3) {
    json["low_freq_factor"] = rope.low_freq_factor();
    json["high_freq_factor"] = rope.high_freq_factor();
  }
  if (!yarn) return json;
  json["beta_fast"] = rope.beta_fast();
  json["beta_slow"] = rope.beta_slow();
  json["truncate"] = rope.truncate();
  if (rope.attention_factor()) json["attention_factor"] = *rope.attention_factor();
  if (rope.mscale()) json["mscale"] = *rope.mscale();
  if (rope.mscale_all_dim()) json["mscale_all_dim"] = *rope.mscale_all_dim();
  return json;
}

}  // namespace

nn::RotaryEmbeddingOptions read_rope(const Json& config, std::int64_t positions,
                                     const std::string& name) {
  nn::RotaryEmbeddingOptions rope(0);
  rope.max_positions(positions).original_max_positions(positions);
  const auto& newer = has(config, "rope_parameters") ? config["rope_parameters"] : Json();
  const auto& older = has(config, "rope_scaling") ? config["rope_scaling"] : Json();
  const auto& scaling = newer.is_object() ? newer : older;
  for (const auto& [key, member] : scaling.items()) {
    SMP_REQUIRE_AS(UnsupportedError, !member.is_object(), name, ": positions of their own for \"",
                   key, "\": nn::RotaryEmbedding is the same in all layers");
  }
  read_scaling(scaling, rope, name);
  for (const auto* place : {&newer, &older, &config}) {
    if (!has(*place, "partial_rotary_factor")) continue;
    SMP_REQUIRE_AS(UnsupportedError,
                   base::json_member<double>(*place, "partial_rotary_factor", name) == 1, name,
                   ": partial_rotary_factor is not 1: nn::RotaryEmbedding turns whole heads");
  }
  for (const auto* place : {&newer, &older, &config}) {
    if (!has(*place, "rope_theta")) continue;
    rope.rope_theta(base::json_member<double>(*place, "rope_theta", name));
    break;
  }
  return rope;
}

void write_rope(const nn::RotaryEmbeddingOptions& rope, Json& config) {
  auto newer = scaling_json(rope);
  config["rope_theta"] = rope.rope_theta();
  config["rope_scaling"] = rope.scaling() == RotaryScaling::kDefault ? Json() : newer;
  newer["rope_theta"] = rope.rope_theta();
  config["rope_parameters"] = std::move(newer);
}

}  // namespace smp::hf
