// server/modules/buffer_watch.h: whether the calls of a module write its own buffers
// (docs/design.md, State of modules).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/values/tensor_memory.h"

namespace smp::server {

/// Detects writes by version counters: each call compares their sum at its end with the sum at its
/// beginning. One call that writes may fill a cache; a module whose calls write twice keeps state.
/// Threads: the rank's.
class BufferWatch {
 public:
  struct Buffer {
    std::string name;  ///< within the module
    at::Tensor tensor;
    std::uint64_t version = 0;  ///< when the last call began
  };

  BufferWatch() = default;  // watches nothing
  explicit BufferWatch(std::vector<Buffer> buffers) : buffers_(std::move(buffers)) {}

  bool on() const noexcept { return !buffers_.empty(); }
  /// True if `tensor` is one of the buffers, or shares memory with it.
  bool has(const at::Tensor& tensor) const noexcept {
    const auto* const memory = memory_of(tensor);
    for (const auto& buffer : buffers_) {
      if (memory != nullptr && memory_of(buffer.tensor) == memory) return true;
    }
    return false;
  }
  /// Begins a step: writes between steps are ignored.
  void begin_step() noexcept { last_ = sum(); }
  /// Begins a call of `microbatch`; other calls may be in progress. @return the sum of versions,
  /// for wrote_since()
  std::uint64_t begin_call(int microbatch) noexcept {
    const auto now = sum();
    for (auto& buffer : buffers_) buffer.version = version_of(buffer.tensor);
    written_outside_ = calls_ == 0 && now != last_;
    shared_ = calls_ > 0 && (shared_ || microbatch != microbatch_);
    ++calls_;
    microbatch_ = microbatch;
    return last_ = now;
  }
  /// Ends the call for which begin_call() returned `before`. @return true if a buffer was written
  /// since then
  bool wrote_since(std::uint64_t before) noexcept {
    --calls_;
    last_ = sum();
    if (last_ == before) return false;
    ++writes_;
    return true;
  }
  bool keeps_state() const noexcept { return writes_ > 1; }
  /// True if, when the last call began and no other was in progress, the buffers had been written
  /// by other code than calls of the module.
  bool written_outside() const noexcept { return written_outside_; }
  /// True if calls of several microbatches have been in progress since the time when none was.
  bool is_shared() const noexcept { return shared_; }
  /// The first buffer that was written since the last call began, or nullptr if none was.
  const Buffer* written() const noexcept {
    for (const auto& buffer : buffers_) {
      if (version_of(buffer.tensor) != buffer.version) return &buffer;
    }
    return nullptr;
  }

 private:
  std::uint64_t sum() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& buffer : buffers_) sum += version_of(buffer.tensor);
    return sum;
  }

  std::vector<Buffer> buffers_;
  int writes_ = 0;
  int calls_ = 0;           // under way
  int microbatch_ = -1;     // of the last that began
  std::uint64_t last_ = 0;  // sum of versions when a call began or ended last
  bool shared_ = false;
  bool written_outside_ = false;
};

}  // namespace smp::server
