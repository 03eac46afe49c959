// precision/fused_step.h: an optimizer's step of one tensor, in one pass over its memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "precision/step_loop.h"
#include "precision/whole_index.h"

namespace smp::precision {

/// A parameter with what its step reads and writes, all of its shape.
struct FusedTensors {
  at::Tensor parameter;  ///< float32, bfloat16 or float16
  at::Tensor gradient;   ///< of these types too
  at::Tensor master;     ///< float32, or undefined
  at::Tensor first;      ///< float32 state; undefined: the step needs none
  at::Tensor second;
};

/// Rounding of a bfloat16 parameter by chance.
struct Chance {
  std::uint64_t key = 0;  ///< of rounding_key()
  WholeIndex part;        ///< what the parameter is of the whole one
};

/// True if the step is known for these: strided and contiguous, on a CPU, of the types above.
bool can_fuse(const FusedTensors& tensors);

/// Steps the parameter as LibTorch's Adam, AdamW or SGD do in float32, but for the last bit of
/// square roots, of which LibTorch's vectorised ones (MKL) are not always the nearest. An element
/// whose master does not round to it starts from its own value. Raises the parameter's version.
/// The result is the same on all processors and for every number of threads.
void fused_step(const FusedTensors& tensors, const std::optional<Chance>& chance,
                const AdamFactors& factors);
void fused_step(const FusedTensors& tensors, const std::optional<Chance>& chance,
                const SgdFactors& factors);

}  // namespace smp::precision
