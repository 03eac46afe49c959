// dp/replica_values.h: replicas have the same values, those of the first one, when the model is
// placed (paper §4.5: parameters and buffers are broadcast).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "d2d/collectives/communicator.h"

namespace smp::dp {

/// Copies the values that `tensors`, expanded ones among them, have on the member of `replicas` at
/// position `root` into those of all others, in messages of about `bucket_bytes`. All members pass
/// tensors of the same shapes and dtypes, in the same order. Suspends the calling fiber. Threads:
/// the rank's.
/// @throws UnsupportedError  a tensor is sparse or quantised.
/// @throws as d2d::Communicator, with a member that left or that makes another call.
void take_values_of(int root, const d2d::Communicator& replicas,
                    const std::vector<at::Tensor>& tensors, std::int64_t bucket_bytes);

}  // namespace smp::dp
