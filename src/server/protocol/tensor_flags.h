// server/protocol/tensor_flags.h: one flag for each tensor of a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace smp::server {

/// A list of flags. The first 64 need no memory of their own.
class TensorFlags {
 public:
  TensorFlags() = default;
  TensorFlags(std::initializer_list<bool> flags) {
    for (const bool flag : flags) push_back(flag);
  }

  void push_back(bool flag) {
    if (size_ < kFew) {
      few_ |= std::uint64_t{flag} << size_;
    } else {
      many_.push_back(flag);
    }
    ++size_;
  }
  bool operator[](std::size_t i) const {
    return i < kFew ? ((few_ >> i) & 1) != 0 : many_[i - kFew];
  }
  std::size_t size() const noexcept { return size_; }
  /// Drops the flags from index `size` on.
  void truncate(std::size_t size) {
    if (size >= size_) return;
    if (size < kFew) few_ &= (std::uint64_t{1} << size) - 1;
    many_.resize(size > kFew ? size - kFew : 0);
    size_ = size;
  }
  bool any() const {
    for (std::size_t i = 0; i < size_; ++i) {
      if ((*this)[i]) return true;
    }
    return false;
  }
  friend bool operator==(const TensorFlags&, const TensorFlags&) = default;

 private:
  static constexpr std::size_t kFew = 64;
  std::uint64_t few_ = 0;
  std::vector<bool> many_;
  std::size_t size_ = 0;
};

}  // namespace smp::server
