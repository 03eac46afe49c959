// samples/models/gpt_weights.cpp: one table of names.
#include "gpt_weights.h"

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace models {
namespace {

/// Parts of published names, ours, and whether the published matrix is [inputs, outputs].
struct Renamed {
  std::string_view theirs, ours;
  bool is_projection;
};
constexpr std::array<Renamed, 6> kNames{{{".ln_1.", ".norm1.", false},
                                         {".ln_2.", ".norm2.", false},
                                         {".attn.c_attn.", ".attention.qkv.", true},
                                         {".attn.c_proj.", ".attention.out.", true},
                                         {".mlp.c_fc.", ".up.", true},
                                         {".mlp.c_proj.", ".down.", true}}};

bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// The values in the file decide whether it is tied, not the configuration.
void require_tied(const smp::StateDict& published) {
  for (const char* table : {"transformer.wte.weight", "wte.weight"}) {
    if (!published.contains(table)) continue;
    if (torch::equal(published.at("lm_head.weight"), published.at(table))) continue;
    throw std::invalid_argument(std::string("the checkpoint has one matrix as ") + table +
                                " and another one as lm_head.weight, which a tied model has once");
  }
}

}  // namespace

smp::StateDict from_public_gpt2(const smp::StateDict& published, const GptConfig& config) {
  smp::StateDict ours;
  for (const auto& [published_name, published_tensor] : published) {
    std::string name = published_name;
    Tensor tensor = published_tensor;
    if (is_mask(name)) continue;
    if (config.tied && name == "lm_head.weight") {
      require_tied(published);
      continue;
    }
    if (!name.starts_with("transformer.") && name != "lm_head.weight") name = "transformer." + name;
    for (const auto& [theirs, our, is_projection] : kNames) {
      const auto found = name.find(theirs);
      if (found == std::string::npos) continue;
      name.replace(found, theirs.size(), our);
      if (is_projection && tensor.dim() == 2) tensor = tensor.t();
      break;
    }
    ours.insert(name, tensor);
  }
  if (!config.tied && !ours.contains("lm_head.weight")) {
    ours.insert("lm_head.weight", ours.at("transformer.wte.weight"));
  }
  return ours;
}

}  // namespace models
