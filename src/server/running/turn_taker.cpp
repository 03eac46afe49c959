// server/running/turn_taker.cpp: what a turn consists of.
#include "server/running/turn_taker.h"

#include <ATen/Parallel.h>

#include "fiber/idler.h"

namespace smp::server {
namespace {

/// The sleep of a thread that shares its core, between two looks for an answer that is due.
constexpr base::Nanoseconds kShortSleep = 20 * base::kMicrosecond;

/// The most looks for messages before a fiber does what nobody waits for.
constexpr int kLooks = 16;

}  // namespace

void TurnTaker::take_turn() {
  auto& own = *fiber::current_fiber();
  if (at::in_parallel_region()) return;  // nothing may be suspended there
  const bool passes_on = schedule::is_passing_on(own.priority);
  const auto now = scheduler_.clock().now();
  const auto turn =
      policy_.begin(passes_on, now, scheduler_.any_waiting_for_peer(), !scheduler_.simulated());
  if (!turn.due) return;
  own.priority = schedule::without_passing_on(own.priority);
  give_way(now, turn.patience);
}

void TurnTaker::give_way() {
  if (at::in_parallel_region()) return;  // nothing may be suspended there
  auto& own = *fiber::current_fiber();
  own.priority = schedule::without_passing_on(own.priority);
  // What comes in pieces needs a look for each.
  for (int i = 0; i < kLooks && !scheduler_.simulated() && scheduler_.poll_all(); ++i) {
  }
  give_way(0, 0);
}

void TurnTaker::give_way(base::Nanoseconds start, base::Nanoseconds patience) {
  const auto priority = fiber::current_fiber()->priority;
  if (!scheduler_.simulated()) scheduler_.poll_all();
  scheduler_.yield_to_those_before(priority);
  bool paid_off = false;
  auto now = scheduler_.clock().now();
  while (now - start < patience) {
    if (scheduler_.oversubscribed()) fiber::sleep_briefly(kShortSleep);
    scheduler_.poll_all();
    paid_off |= scheduler_.yield_to_those_before(priority);
    now = scheduler_.clock().now();
  }
  using enum schedule::YieldPolicy::Waited;
  policy_.end(now, patience == 0 ? kNot : paid_off ? kPaidOff : kInVain);
}

void await_answer(fiber::Event& event, const fiber::WaitReason& reason) {
  if (auto* own = fiber::current_fiber()) own->priority = schedule::passing_on(own->priority);
  event.wait(reason);
}

void set_priority(fiber::Priority priority) noexcept {
  auto& own = *fiber::current_fiber();
  own.priority = schedule::is_passing_on(own.priority) ? schedule::passing_on(priority) : priority;
}

}  // namespace smp::server
