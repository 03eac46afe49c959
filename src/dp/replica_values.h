// dp/replica_values.h: replicas have the same values: when the model is placed those of the first
// one (paper §4.5: parameters and buffers are broadcast), later those of the ones that step them
// (paper App. H.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "d2d/communicator.h"

namespace smp::dp {

/// Writes the values that `tensors` have on the member of `replicas` at position `root` into those
/// of all others, in messages of about `bucket_bytes`. All members pass tensors of the same shapes
/// and dtypes, in the same order. Suspends the calling fiber; the rank's thread.
/// @throws UnsupportedError  a tensor is sparse or quantised.
/// @throws as d2d::Communicator, with a member that left or that makes another call.
void take_values_of(int root, const d2d::Communicator& replicas,
                    const std::vector<at::Tensor>& tensors, std::int64_t bucket_bytes);

/// Writes the values that each of `tensors` has on its owner into those of all others, in rounds of
/// about `bucket_bytes`. All members pass tensors of the same shapes and dtypes, in the same order.
/// Each sends (n-1) times what it owns. Suspends the calling fiber; the rank's thread.
/// @param owners  positions in `replicas`, one for each tensor; -1: its values stay
/// @throws as d2d::Communicator, with a member that left or that makes another call.
void take_values_of_owners(const d2d::Communicator& replicas,
                           const std::vector<at::Tensor>& tensors, const std::vector<int>& owners,
                           std::int64_t bucket_bytes);

}  // namespace smp::dp
