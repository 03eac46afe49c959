// server/admission/waiting_list.h: what may not start yet on this rank, and why. Reports walk it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "fiber/scheduler.h"
#include "server/admission/tasks.h"

namespace smp::server {

/// Why something may not start. A request may wait for one after the other.
enum class Reason : std::uint8_t {
  kRow,                     ///< an earlier request of the same execution
  kPromisedInput,           ///< arguments that other modules have promised
  kWindow,                  ///< lower microbatches are to end on this rank first
  kForwardOfEarlyBackward,  ///< a backward came before its forward had answered
  kPromisedGradient,        ///< gradients that come from backwards of other modules
  kMicrobatchOrder,         ///< a fiber, at a module that keeps state: lower microbatches go first
  kBackwardGate,            ///< a body, at its first backward: the schedule has other work first
  kHold,                    ///< a fiber that keeps its rank free for what the schedule names next
};
/// What follows "waits for"; lives as long as the program.
const char* text_of(Reason reason) noexcept;

/// One that waits: a request, without a fiber, or a fiber.
struct Waiting {
  Reason reason = Reason::kRow;
  std::int32_t microbatch = -1;
  ModuleId module;               ///< kBody: not known, or of none
  base::Nanoseconds since = 0;   ///< by the list's clock
  WorkerTask task;               ///< the request
  std::size_t missing = 0;       ///< tensors promised to it that have not come
  bool failed = false;           ///< something promised to it did
  fiber::Event* turn = nullptr;  ///< what its fiber waits at

  /// The rank that asked for it; nullptr: a fiber of this one.
  const PpRank* asker() const noexcept;
};

/// In the order in which they began to wait. Its memory is used again, in later steps too, so that
/// the steady state allocates nothing. Threads: the rank's; everything is safe in a poll.
class WaitingList {
 public:
  using Entry = std::list<Waiting>::iterator;

  explicit WaitingList(const base::Clock& clock) : clock_(clock) {}

  Entry add(Reason reason, std::int32_t microbatch, ModuleId module, WorkerTask&& task = {});
  void remove(Entry entry) noexcept;
  /// Removes it, for its request.
  template <class Task>
  Task take(Entry entry) {
    Task task = std::get<Task>(std::move(entry->task));
    remove(entry);
    return task;
  }

  std::size_t size() const noexcept { return waiting_.size(); }
  auto begin() const noexcept { return waiting_.begin(); }
  auto end() const noexcept { return waiting_.end(); }
  void clear() noexcept {
    while (!waiting_.empty()) remove(waiting_.begin());
  }

 private:
  const base::Clock& clock_;
  std::list<Waiting> waiting_, spare_;
};

}  // namespace smp::server
