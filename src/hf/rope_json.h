// hf/rope_json.h: how config.json tells of rotary positions, in the form of transformers 5
// ("rope_parameters") and in the older one ("rope_theta" and "rope_scaling").
#pragma once

#include <string>

#include "config/json.h"
#include "smp/nn/rotary_embedding.h"

namespace smp::hf {

/// Returns what `config` says of positions.
/// @param positions  the model's max_position_embeddings
/// @param name       leads messages
/// @throws UnsupportedError  a way to stretch them, or a part of the head, that
///                           nn::RotaryEmbedding does not have
nn::RotaryEmbeddingOptions read_rope(const base::Json& config, std::int64_t positions,
                                     const std::string& name);

/// Adds both forms to `config`.
void write_rope(const nn::RotaryEmbeddingOptions& rope, base::Json& config);

}  // namespace smp::hf
