// server/buffer_watch.h: whether the calls of a module write its own buffers (docs/design.md, State
// of modules).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace smp::server {

/// By version counters: each call compares their sum at its end with that at its beginning. One
/// call that writes may fill a cache; a module whose calls write twice keeps state. Threads: the
/// rank's.
class BufferWatch {
 public:
  BufferWatch() = default;  // watches nothing
  explicit BufferWatch(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {}

  bool on() const noexcept { return !buffers_.empty(); }
  /// Grows with every write that version counters show.
  std::uint64_t versions() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& buffer : buffers_) {
      if (buffer.defined() && !buffer.is_inference()) sum += buffer._version();
    }
    return sum;
  }
  /// A call ends that began at `before`. @return whether it wrote
  bool wrote_since(std::uint64_t before) noexcept {
    if (versions() == before) return false;
    ++writes_;
    return true;
  }
  bool keeps_state() const noexcept { return writes_ > 1; }

 private:
  std::vector<at::Tensor> buffers_;
  int writes_ = 0;
};

}  // namespace smp::server
