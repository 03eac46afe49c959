// simulate/ready_queue.h: the fibers that are ready on one rank, in the order of fiber/scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace smp::simulate {

/// By priority (schedule/yield_policy.h: smaller first, those that pass an answer on before all),
/// then as they became ready. A priority counts as it was when the fiber was pushed.
class ReadyQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  /// Not if empty.
  int first() const noexcept { return heap_.front().fiber; }

  void push(int fiber, std::int64_t priority) { insert({priority, ++pushed_, fiber}); }
  /// Before its equals.
  void push_first(int fiber, std::int64_t priority) { insert({priority, 0, fiber}); }

  int pop() {
    std::pop_heap(heap_.begin(), heap_.end(), after);
    const int fiber = heap_.back().fiber;
    heap_.pop_back();
    return fiber;
  }

  /// Whether somebody must go before a fiber of `priority`; equals need not.
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
