// samples/t5/weights.h: public T5 checkpoints.
#pragma once

#include <smp/smp.h>

#include "config.h"

namespace t5 {

/// The tensors of a public T5 checkpoint, ready for load_state_dict() of a T5: names are the same,
/// but for copies of the embedding table, which this model has once.
/// @throws std::invalid_argument  what would be a copy has other values: a head of its own, say,
///                                with tie_word_embeddings.
smp::StateDict from_public_t5(const smp::StateDict& published, const T5Config& config);

}  // namespace t5
