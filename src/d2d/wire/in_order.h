// d2d/wire/in_order.h: numbered things that come in any order, and go on in that of their numbers.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace smp::d2d {

/// Holds values that came before their turn. Numbers count from 0, each is used once.
template <class T>
class InOrder {
 public:
  /// Keeps a value until its turn. Returns false, and keeps nothing, if `number` has been there, or
  /// is `kFarthest` or more ahead.
  bool put(std::uint64_t number, T value) {
    if (number < next_ || number - next_ >= kFarthest) return false;
    const auto place = static_cast<std::size_t>(number - next_);
    if (place >= waiting_.size()) waiting_.resize(place + 1);
    if (waiting_[place]) return false;
    waiting_[place] = std::move(value);
    return true;
  }
  /// Returns and removes the next value, if it is there.
  std::optional<T> take() {
    if (!ready()) return std::nullopt;
    std::optional<T> value = std::move(waiting_.front());
    waiting_.pop_front();
    ++next_;
    return value;
  }
  /// Returns true if `number` is the next one: its value goes on at once, and is not put here.
  bool pass(std::uint64_t number) {
    if (number != next_) return false;
    if (!waiting_.empty()) waiting_.pop_front();
    ++next_;
    return true;
  }
  bool ready() const noexcept { return !waiting_.empty() && waiting_.front().has_value(); }
  /// Returns the next value, which must be ready.
  const T& front() const noexcept { return *waiting_.front(); }
  /// Returns the number that take() waits for.
  std::uint64_t next() const noexcept { return next_; }

  static constexpr std::uint64_t kFarthest = 1 << 20;

 private:
  std::deque<std::optional<T>> waiting_;  // from number next_ on
  std::uint64_t next_ = 0;
};

}  // namespace smp::d2d
