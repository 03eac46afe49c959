// d2d/wire/slots.h: things with numbers that are used again. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace smp::d2d {

/// A table of values whose places are used again, so that the steady state allocates nothing.
template <class T>
class Slots {
 public:
  /// Stores `value` and returns its number, which holds until it is taken.
  std::uint64_t put(T value) {
    ++in_use_;
    if (free_.empty()) {
      values_.push_back(std::move(value));
      return values_.size() - 1;
    }
    const std::size_t place = free_.back();
    free_.pop_back();
    values_[place] = std::move(value);
    return place;
  }
  /// Returns the value of a number; valid until the next put().
  T& operator[](std::uint64_t number) { return values_[number]; }
  const T& operator[](std::uint64_t number) const { return values_[number]; }
  T take(std::uint64_t number) {
    --in_use_;
    free_.push_back(number);
    return std::exchange(values_[number], T{});
  }
  /// Returns a bound on all numbers that were ever given.
  std::size_t bound() const noexcept { return values_.size(); }
  bool empty() const noexcept { return in_use_ == 0; }
  std::size_t size() const noexcept { return in_use_; }

 private:
  std::vector<T> values_;
  std::vector<std::size_t> free_;
  std::size_t in_use_ = 0;
};

}  // namespace smp::d2d
