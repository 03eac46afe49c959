// dp/bucket_plan.cpp: see the header.
#include "dp/bucket_plan.h"

#include <algorithm>
#include <map>

namespace smp::dp {
namespace {

/// Still taking tensors.
struct OpenBucket {
  std::size_t number = 0;
  std::int64_t bytes = 0;
};

}  // namespace

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
