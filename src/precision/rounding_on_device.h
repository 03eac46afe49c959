// precision/rounding_on_device.h: stochastic rounding in LibTorch's operators, for any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "precision/whole_index.h"

namespace smp::precision {

/// Rounds as round_stochastically() does on CPUs, to the bit, in some hundred operators.
void round_on_device(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                     const WholeIndex& part);

}  // namespace smp::precision
