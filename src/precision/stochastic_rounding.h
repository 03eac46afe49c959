// precision/stochastic_rounding.h: float32 to bfloat16 with probabilities in proportion to the
// distances, by random bits that depend on the element's name and place alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "precision/whole_index.h"

namespace smp::precision {

/// Returns the key of the random bits of one parameter in one step. Ranks that hold parts or
/// copies of the parameter get the same one.
std::uint64_t rounding_key(std::uint64_t seed, std::uint64_t step, std::string_view parameter);

/// Rounds `from` into `to`: to one of the two neighbours in bfloat16, upwards in magnitude with the
/// probability (x - lower) / (upper - lower) in steps of 2^-16, so that the mean of many roundings
/// is x. Values that bfloat16 has stay as they are, signed zeros and denormals included; infinities
/// and NaN stay such. Beyond the largest finite bfloat16 the result is that one: rounding makes no
/// infinity. Element i of the whole tensor gets the same 16 bits on every processor, whatever part
/// of the tensor is rounded.
/// @param from  float32, contiguous
/// @param to    bfloat16, contiguous, of the same shape and device
/// @param key   of rounding_key()
/// @param part  what the tensors are of the whole one
void round_stochastically(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                          const WholeIndex& part);

}  // namespace smp::precision
