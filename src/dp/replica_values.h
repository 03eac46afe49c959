// dp/replica_values.h: replicas start from the same values, those of the first
// (paper §4.5: parameters and buffers are broadcast when the model is placed).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "d2d/communicator.h"

namespace smp::dp {

/// Writes the values that `tensors` have on the first member of `replicas` into those of all
/// others, in messages of about `bucket_bytes`. All members pass tensors of the same shapes and
/// dtypes, in the same order. Suspends the calling fiber; the rank's thread.
/// @throws UnsupportedError  a tensor is sparse, quantised or not on the CPU.
/// @throws as d2d::Communicator, with a member that left or that makes another call.
void take_values_of_first(const d2d::Communicator& replicas, const std::vector<at::Tensor>& tensors,
                          std::int64_t bucket_bytes);

}  // namespace smp::dp
