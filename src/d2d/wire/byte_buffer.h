// d2d/wire/byte_buffer.h: uninitialised bytes of changing size, and a pool of them.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace smp::d2d {

/// Bytes whose start is aligned for any element type. Growing discards the content.
class ByteBuffer {
 public:
  void resize(std::size_t size) {
    if (size > capacity_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(size);
      capacity_ = size;
    }
    size_ = size;
  }
  std::byte* data() noexcept { return bytes_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }
  std::span<const std::byte> span() const noexcept { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// Lends buffers, so that the steady state allocates nothing. Large ones are not kept.
class BufferPool {
 public:
  ByteBuffer take() {
    if (free_.empty()) return {};
    ByteBuffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void give(ByteBuffer&& buffer) {
    if (buffer.capacity() <= kLargestKept && free_.size() < kMostKept) {
      free_.push_back(std::move(buffer));
    }
  }

 private:
  static constexpr std::size_t kLargestKept = 64 << 10;
  static constexpr std::size_t kMostKept = 64;
  std::vector<ByteBuffer> free_;
};

}  // namespace smp::d2d
