// samples/t5/weights.cpp: what public checkpoints hold twice.
#include "weights.h"

namespace t5 {

smp::StateDict from_public_t5(const smp::StateDict& published, const T5Config& config) {
  smp::StateDict ours;
  for (const auto& [name, tensor] : published) {
    if (name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight") continue;
    if (config.tie_word_embeddings && name == "lm_head.weight") continue;
    ours.insert(name, tensor);
  }
  return ours;
}

}  // namespace t5
