// dp/bucket_plan.h: which tensors travel together when replicas add up gradients
// (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3: few large messages instead of many
// small ones).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smp::dp {

/// The properties of a tensor that decide which bucket it is in.
struct TensorSize {
  c10::ScalarType dtype;
  std::int64_t bytes;
};

/// Returns the dtype and bytes of each of `tensors`.
/// @throws UnsupportedError  one cannot be sent: it is sparse, say, or quantised
std::vector<TensorSize> sizes_of(const std::vector<at::Tensor>& tensors);

/// The most bytes that the first bucket should have. Nothing is computed before it travels, so it
/// should travel soon.
inline constexpr std::int64_t kFirstBucketBytes = 1 << 20;

/// Returns the indices of `tensors` by bucket, each index once: the last tensors first, as backward
/// comes to them, and tensors of one dtype together. A bucket takes tensors until it has
/// `cap_bytes` or more, the first one at most kFirstBucketBytes. A pure function: all ranks get the
/// same.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<TensorSize>& tensors,
                                                   std::int64_t cap_bytes);

}  // namespace smp::dp
