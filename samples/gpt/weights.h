// samples/gpt/weights.h: GPT-2's public weights for gpt.h.
#pragma once

#include <smp/smp.h>

namespace gpt {

/// The tensors of a public GPT-2 checkpoint under the names and in the shapes of gpt::Gpt, ready
/// for load_state_dict(): matrices are transposed, c_attn is cut into query, key and value, masks
/// are left out, and without an lm_head of its own the head gets a copy of the table.
/// @throws std::invalid_argument  naming a tensor that is none of GPT-2's.
smp::StateDict from_public_gpt2(const smp::StateDict& published);

}  // namespace gpt
