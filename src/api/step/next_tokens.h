// api/step/next_tokens.h: what is left of scores before a token is drawn.
#pragma once

#include <ATen/core/Tensor.h>

#include "smp/text/generate.h"

namespace smp {

/// Throws unless temperature, top_k and top_p are in range. @throws UsageError
void check_choice(const GenerateOptions& options);

/// Returns the probabilities [B, V] with which tokens are drawn, float64 on the CPU: temperature,
/// then top_k, then top_p, as transformers does it. The temperature is not 0.
at::Tensor probabilities_left(const at::Tensor& scores, const GenerateOptions& options);

}  // namespace smp
