// samples/t5/weights.cpp: what public checkpoints hold twice.
#include "weights.h"

#include <stdexcept>
#include <string>

namespace t5 {
namespace {

bool is_copy(const std::string& name, const T5Config& config) {
  return name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight" ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

/// The values in the file decide: a flag of the configuration may be of another version.
void require_copy(const smp::StateDict& published, const std::string& name) {
  if (!published.contains("shared.weight")) return;  // which the load will miss
  const auto& table = published.at("shared.weight");
  if (torch::equal(published.at(name), table)) return;
  throw std::invalid_argument(
      "the checkpoint has one matrix as shared.weight and another one as " + name +
      ", which are the same tensor of a T5" +
      (name == "lm_head.weight" ? " with tie_word_embeddings = true; set it to false" : ""));
}

}  // namespace

smp::StateDict from_public_t5(const smp::StateDict& published, const T5Config& config) {
  smp::StateDict ours;
  for (const auto& [name, tensor] : published) {
    if (is_copy(name, config)) {
      require_copy(published, name);
    } else {
      ours.insert(name, tensor);
    }
  }
  return ours;
}

}  // namespace t5
