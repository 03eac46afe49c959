// d2d/wires/fifo.h: a queue whose places are used again. Threads: one at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace smp::d2d {

/// First in, first out, in a ring that grows: the steady state allocates nothing, as a std::deque
/// would.
template <class T>
class Fifo {
 public:
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  /// Returns the oldest one, of which there must be some.
  T& front() noexcept { return places_[first_]; }
  const T& front() const noexcept { return places_[first_]; }
  void push(T value) {
    if (size_ == places_.size()) grow();
    places_[(first_ + size_) % places_.size()] = std::move(value);
    ++size_;
  }
  /// Removes the oldest one, and returns it.
  T pop() {
    T value = std::exchange(places_[first_], T{});
    first_ = (first_ + 1) % places_.size();
    --size_;
    return value;
  }

 private:
  void grow() {
    std::vector<T> more(places_.empty() ? 8 : 2 * places_.size());
    for (std::size_t i = 0; i < size_; ++i) {
      more[i] = std::move(places_[(first_ + i) % places_.size()]);
    }
    places_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> places_;
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace smp::d2d
