// samples/gpt/weights.cpp: one table of names.
#include "weights.h"

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {
namespace {

/// What stands between "h.N." and "weight" or "bias" in published names, and here: one part, or
/// three of equal size.
struct Renamed {
  std::string_view theirs;
  std::vector<std::string> ours;
  bool is_matrix;  ///< published as [inputs, outputs]
};

const std::array<Renamed, 6>& renamed() {
  static const std::array<Renamed, 6> all{
      {{"ln_1", {"attention.pre_norm"}, false},
       {"attn.c_attn", {"attention.query", "attention.key", "attention.value"}, true},
       {"attn.c_proj", {"attention.dense"}, true},
       {"ln_2", {"output.pre_norm"}, false},
       {"mlp.c_fc", {"output.first"}, true},
       {"mlp.c_proj", {"output.second"}, true}}};
  return all;
}

bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// @param name  "h.3.attn.c_attn.weight"
void insert_of_layer(smp::StateDict& ours, const std::string& name, torch::Tensor tensor) {
  const auto end_of_layer = name.find('.', 2);
  const auto last_dot = name.rfind('.');
  if (end_of_layer < last_dot) {
    const auto theirs = name.substr(end_of_layer + 1, last_dot - end_of_layer - 1);
    for (const auto& entry : renamed()) {
      if (entry.theirs != theirs) continue;
      if (entry.is_matrix && tensor.dim() == 2) tensor = tensor.t();
      const auto parts = tensor.chunk(static_cast<std::int64_t>(entry.ours.size()), 0);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        ours.insert(name.substr(0, end_of_layer + 1) + entry.ours[i] + name.substr(last_dot),
                    parts[i]);
      }
      return;
    }
  }
  throw std::invalid_argument("'" + name + "' is no tensor of GPT-2");
}

}  // namespace

smp::StateDict from_public_gpt2(const smp::StateDict& published) {
  constexpr std::string_view kPrefix = "transformer.";
  smp::StateDict ours;
  for (const auto& [published_name, tensor] : published) {
    std::string name = published_name;
    if (is_mask(name)) continue;
    if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
    if (name.starts_with("h.")) {
      insert_of_layer(ours, name, tensor);
    } else if (name.starts_with("wte.") || name.starts_with("wpe.") || name.starts_with("ln_f.") ||
               name == "lm_head.weight") {
      ours.insert(name, tensor);
    } else {
      throw std::invalid_argument("'" + published_name + "' is no tensor of GPT-2");
    }
  }
  if (!ours.contains("lm_head.weight") && ours.contains("wte.weight")) {
    ours.insert("lm_head.weight", ours.at("wte.weight"));
  }
  return ours;
}

}  // namespace gpt
