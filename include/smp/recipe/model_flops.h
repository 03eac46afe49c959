// smp/recipe/model_flops.h: floating-point operations that a decoder asks for, however it is
// computed.
#pragma once

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// The sizes of a Llama-shaped decoder that its matrix products depend on.
struct DecoderShape {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool gated = true;  ///< three matrices in a feed-forward network, not two
};

/// Returns the operations of the forward of one sequence of `length` tokens: two for each
/// multiplication with an addition of the projections, the network, the head, and the two products
/// of attention,
///
///     2 T (L (W D (2 H + 2 K) + 3 W I) + W V)  +  4 L T² H D.
///
/// As in PaLM's definition (arXiv 2204.02311, appendix B) the scores above the diagonal count,
/// which a causal kernel leaves out; norms, rotations and lookups do not. Any thread.
SMP_API double forward_flops(const DecoderShape& shape, std::int64_t length);

/// Returns the operations of a training step for one sequence: three times those of the forward, as
/// each product has two in the backward. What is computed again does not count: these are the
/// model's operations and not the machine's.
SMP_API double training_flops(const DecoderShape& shape, std::int64_t length);

/// Returns the number of parameters of these products, head included and embedding table not.
SMP_API double matrix_parameters(const DecoderShape& shape);

}  // namespace smp
