// samples/models/gpt_weights.h: GPT-2's public weights for the transformer of gpt.h.
#pragma once

#include <smp/smp.h>

#include "gpt.h"

namespace models {

/// The tensors of a public GPT-2 checkpoint under the names and in the shapes of models::Gpt, ready
/// for load_state_dict(): matrices are transposed, masks left out, and without a head of its own
/// the untied model gets a copy of the table.
/// @throws std::invalid_argument  the model is tied, and the checkpoint has a head of its own.
smp::StateDict from_public_gpt2(const smp::StateDict& published, const GptConfig& config);

}  // namespace models
