// server/recompute/host_pool.h: host memory for what has left a device, used again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "server/recompute/copy_streams.h"

namespace smp::server {

/// Blocks of host memory up to a limit; pinned memory is dear to allocate, so freed blocks stay.
/// Threads: one at a time.
class HostPool {
 public:
  /// @param streams  outlive the pool
  HostPool(CopyStreams& streams, std::int64_t limit) : streams_(streams), limit_(limit) {}

  /// Returns a block of at least `bytes`; undefined: it would exceed the limit, or the host has no
  /// more to give.
  [[nodiscard]] at::Tensor take(std::int64_t bytes);
  /// Takes a block back. @param last  a copy that may still read or write it; nullptr: none
  void give(at::Tensor block, CopyStreams::MarkPointer last);
  /// Returns the bytes of all blocks, of those in use and of those that wait for their next use.
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void collect();

  CopyStreams& streams_;
  const std::int64_t limit_;
  std::int64_t bytes_ = 0;
  std::multimap<std::int64_t, at::Tensor> free_;                        // by size
  std::vector<std::pair<at::Tensor, CopyStreams::MarkPointer>> given_;  // perhaps still copied
};

}  // namespace smp::server
