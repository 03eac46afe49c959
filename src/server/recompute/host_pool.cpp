// server/recompute/host_pool.cpp: the smallest block that is large enough, and not much larger.
#include "server/recompute/host_pool.h"

#include <c10/util/Exception.h>

#include <iterator>

namespace smp::server {
namespace {

/// A block may be so many times as large as what it is taken for.
constexpr std::int64_t kMostWaste = 2;

}  // namespace

at::Tensor HostPool::take(std::int64_t bytes) {
  collect();
  const auto fit = free_.lower_bound(bytes);
  if (fit != free_.end() && fit->first <= kMostWaste * bytes) {
    auto block = std::move(fit->second);
    free_.erase(fit);
    return block;
  }
  std::int64_t unused = 0;
  for (const auto& [size, block] : free_) unused += size;
  if (bytes_ - unused + bytes > limit_) return {};
  while (bytes_ + bytes > limit_) {  // the largest make most room
    const auto largest = std::prev(free_.end());
    bytes_ -= largest->first;
    free_.erase(largest);
  }
  try {
    auto block = streams_.host_memory(bytes);
    bytes_ += bytes;
    return block;
  } catch (const c10::Error&) {  // other programs use it, or there is a limit of what is pinned
    return {};
  }
}

void HostPool::give(at::Tensor block, CopyStreams::MarkPointer last) {
  given_.emplace_back(std::move(block), std::move(last));
}

void HostPool::collect() {
  std::erase_if(given_, [this](auto& given) {
    if (given.second != nullptr && !streams_.done(given.second)) return false;
    const auto bytes = given.first.numel();
    free_.emplace(bytes, std::move(given.first));
    return true;
  });
}

}  // namespace smp::server
