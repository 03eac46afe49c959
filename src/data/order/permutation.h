// data/order/permutation.h: a random order that takes no memory.
#pragma once

#include <cstdint>

namespace smp::data {

/// A permutation of 0 to size - 1 that looks random and takes a few numbers of memory: another for
/// every key. Threads: any.
class Permutation {
 public:
  /// @param size  at least 1
  Permutation(std::int64_t size, std::uint64_t key);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(size_); }
  /// Returns the number at place `index` of the order, below size(); takes about 50 ns.
  std::int64_t operator()(std::int64_t index) const noexcept;

 private:
  std::uint64_t shuffle(std::uint64_t value) const noexcept;

  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

}  // namespace smp::data
