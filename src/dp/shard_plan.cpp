// dp/shard_plan.cpp: see the header.
#include "dp/shard_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace smp::dp {
namespace {

/// Returns the buckets, by dtype, of the tensors that replica `owner` keeps, as indices of
/// `tensors`.
std::map<c10::ScalarType, std::vector<std::vector<std::size_t>>> buckets_of(
    const std::vector<TensorSize>& tensors, const std::vector<int>& owners, int owner,
    std::int64_t cap_bytes) {
  std::vector<std::size_t> kept;
  std::vector<TensorSize> sizes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] != owner) continue;
    kept.push_back(i);
    sizes.push_back(tensors[i]);
  }
  std::map<c10::ScalarType, std::vector<std::vector<std::size_t>>> buckets;
  for (auto& bucket : plan_buckets(sizes, cap_bytes)) {
    for (auto& number : bucket) number = kept[number];
    buckets[tensors[bucket[0]].dtype].push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace

std::vector<int> plan_shards(const std::vector<std::int64_t>& bytes,
                             std::vector<std::int64_t>& loads) {
  SMP_ASSERT(!loads.empty(), "shards among no replica");
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int> owners(bytes.size());
  for (const auto i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes[i];
    owners[i] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

std::vector<int> owners_among(const std::vector<int>& owners,
                              const std::vector<std::size_t>& parameters) {
  std::vector<int> some;
  if (owners.empty()) return some;
  for (const auto parameter : parameters) {
    if (owners.at(parameter) >= 0) some.push_back(owners[parameter]);
  }
  SMP_ASSERT(some.empty() || some.size() == parameters.size(), some.size(), " of ",
             parameters.size(), " parameters have an owner");
  return some;
}

std::vector<ShardRound> plan_rounds(const std::vector<TensorSize>& tensors,
                                    const std::vector<int>& owners, int replicas,
                                    std::int64_t cap_bytes) {
  SMP_ASSERT(owners.size() == tensors.size(), owners.size(), " owners of ", tensors.size());
  std::map<c10::ScalarType, std::vector<std::vector<std::vector<std::size_t>>>> rounds;
  for (int owner = 0; owner < replicas; ++owner) {
    for (auto& [dtype, buckets] :
         buckets_of(tensors, owners, owner, std::max<std::int64_t>(1, cap_bytes / replicas))) {
      auto& of_dtype = rounds[dtype];
      while (of_dtype.size() < buckets.size()) of_dtype.emplace_back(replicas);
      for (std::size_t i = 0; i < buckets.size(); ++i) of_dtype[i][owner] = std::move(buckets[i]);
    }
  }
  std::vector<ShardRound> all;
  for (auto& [dtype, of_dtype] : rounds) {
    for (auto& of_owner : of_dtype) all.push_back({dtype, std::move(of_owner)});
  }
  return all;
}

}  // namespace smp::dp
