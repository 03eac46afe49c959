// partition/simulated_stage.h: one rank as the simulator sees it: its thread, and the fibers that
// are ready for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/recorder.h"

namespace smp::partition {

/// A task of one microbatch. Forward and backward of a request are two fibers in the runtime, but
/// never at the same time.
struct SimulatedFiber {
  int task = 0;
  int microbatch = 0;
  std::int64_t priority = 0;
  int operation = -1;               ///< next; -1: at the end
  int next_in_inbox = -1;           ///< of a stage
  std::int64_t waiting_bytes = 0;   ///< held until it goes on: of its caller, and what came
  std::int64_t arriving_bytes = 0;  ///< of the message that is on its way to it
  bool backward = false;
  bool unpacks = false;     ///< its message costs time when it goes on
  bool awaiting = false;    ///< the answer of a peer
  bool passing_on = false;  ///< as in base::FiberLocals
  bool had_turn = false;
  bool newborn = false;  ///< a body that never ran
  bool at_gate = false;  ///< a body that waits for its backward's turn
};

/// Those that pass an answer on, then by priority, then as they became ready: the order of
/// base/fiber.
class ReadyQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  int first() const noexcept { return heap_.front().index; }

  void push(int index, const SimulatedFiber& fiber) { insert(index, fiber, ++pushed_); }
  /// Before its equals.
  void push_first(int index, const SimulatedFiber& fiber) { insert(index, fiber, 0); }

  int pop() {
    std::pop_heap(heap_.begin(), heap_.end(), after);
    const int index = heap_.back().index;
    heap_.pop_back();
    return index;
  }

  /// Whether somebody must go before `fiber`; equals need not.
  bool has_before(const SimulatedFiber& fiber) const noexcept {
    if (heap_.empty()) return false;
    const auto& best = heap_.front();
    if (best.passing_on != fiber.passing_on) return best.passing_on;
    return best.priority < fiber.priority;
  }

 private:
  struct Entry {
    bool passing_on;
    std::int64_t priority;
    std::uint64_t number;
    int index;
  };

  static bool after(const Entry& a, const Entry& b) noexcept {
    if (a.passing_on != b.passing_on) return b.passing_on;
    return std::tie(a.priority, a.number) > std::tie(b.priority, b.number);
  }

  void insert(int index, const SimulatedFiber& fiber, std::uint64_t number) {
    heap_.push_back({fiber.passing_on, fiber.priority, number, index});
    std::push_heap(heap_.begin(), heap_.end(), after);
  }

  std::vector<Entry> heap_;
  std::uint64_t pushed_ = 0;
};

struct SimulatedStage {
  int running = -1;                  ///< fiber that computes
  base::Nanoseconds since = 0;       ///< when it began
  base::Nanoseconds work = 0;        ///< how long it takes on a core of its own
  int host = -1;                     ///< crowded one that it is on; -1: it has a core of its own
  base::Nanoseconds free_at = 0;     ///< end of handling messages
  base::Nanoseconds hold_until = 0;  ///< a fiber that had its turn waits for answers
  base::Nanoseconds last_turn = 0;
  int awaiting = 0;    ///< fibers that wait for an answer of a peer
  bool polls = false;  ///< before it looks for the next fiber
  int first_in_inbox = -1, last_in_inbox = -1;
  ReadyQueue ready;
  base::Nanoseconds busy = 0;
  std::int64_t held = 0, settled_peak = 0, peak = 0, messages = 0;
  std::vector<base::Span> spans;

  void hold(std::int64_t bytes) noexcept {
    held += bytes;
    settled_peak = std::max(settled_peak, held);
    need(0);
  }
  /// For a moment, while it computes.
  void need(std::int64_t bytes) noexcept { peak = std::max(peak, held + bytes); }
};

}  // namespace smp::partition
