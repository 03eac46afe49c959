// simulate/ready_queue.h: the fibers that are ready on one rank, in the order of fiber/scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace smp::simulate {

/// The ready fibers by priority (schedule/yield_policy.h: smaller first, those that pass an answer
/// on before all), then in the order they became ready. The priority is that at the time of the
/// push.
class ReadyQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  /// Returns the fiber that goes first. The queue must not be empty.
  int first() const noexcept { return heap_.front().fiber; }

  void push(int fiber, std::int64_t priority) { insert({priority, ++pushed_, fiber}); }
  /// Adds a fiber that goes before those of equal priority.
  void push_first(int fiber, std::int64_t priority) { insert({priority, 0, fiber}); }

  int pop() {
    std::pop_heap(heap_.begin(), heap_.end(), after);
    const int fiber = heap_.back().fiber;
    heap_.pop_back();
    return fiber;
  }

  /// True if some fiber must go before one of `priority`; equals need not.
  bool has_before(std::int64_t priority) const noexcept {
    return !heap_.empty() && heap_.front().priority < priority;
  }

 private:
  struct Entry {
    std::int64_t priority;
    std::uint64_t number;
    int fiber;
  };

  static bool after(const Entry& a, const Entry& b) noexcept {
    return std::tie(a.priority, a.number) > std::tie(b.priority, b.number);
  }

  void insert(const Entry& entry) {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end(), after);
  }

  std::vector<Entry> heap_;
  std::uint64_t pushed_ = 0;
};

}  // namespace smp::simulate
