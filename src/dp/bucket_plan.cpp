// dp/bucket_plan.cpp: see the header.
#include "dp/bucket_plan.h"

#include <algorithm>
#include <map>

#include "d2d/tensors/tensor_data.h"

namespace smp::dp {
namespace {

/// A bucket that still takes tensors.
struct OpenBucket {
  std::size_t number = 0;
  std::int64_t bytes = 0;
};

}  // namespace

std::vector<TensorSize> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSize> sizes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    d2d::check_sendable(tensors[i], i);
    sizes.push_back({tensors[i].scalar_type(), static_cast<std::int64_t>(tensors[i].nbytes())});
  }
  return sizes;
}

std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<TensorSize>& tensors,
                                                   std::int64_t cap_bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::map<c10::ScalarType, OpenBucket> open;
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const auto [bucket, fresh] = open.try_emplace(tensors[i].dtype, OpenBucket{buckets.size()});
    if (fresh) buckets.emplace_back();
    auto& [number, bytes] = bucket->second;
    buckets[number].push_back(i);
    bytes += tensors[i].bytes;
    const auto limit = number == 0 ? std::min(kFirstBucketBytes, cap_bytes) : cap_bytes;
    if (bytes >= limit) open.erase(bucket);
  }
  return buckets;
}

}  // namespace smp::dp
