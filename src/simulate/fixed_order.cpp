// simulate/fixed_order.cpp: each rank goes on as far as what it needs is done, until all are.
#include "simulate/fixed_order.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "base/check.h"

namespace smp::simulate {
namespace {

using schedule::Action;
using schedule::ActionKind;

class Chain {
 public:
  Chain(const schedule::ScheduleLists& lists, const ActionDuration& duration)
      : lists_(lists), duration_(duration), ranks_(lists.ranks.size()) {
    for (auto& rank : ranks_) rank.done.resize(static_cast<std::size_t>(lists.microbatches));
  }

  /// Does the next action of `rank`, if it can. Returns true if it did.
  bool advance(int rank) {
    const auto& list = lists_.ranks[static_cast<std::size_t>(rank)];
    auto& own = at(rank);
    if (own.next == list.size()) return false;
    const auto& action = list[own.next];
    const auto ready = when_ready(action, rank);
    if (!ready) return false;
    own.free_at = std::max(own.free_at, *ready) + duration_(action, rank);
    auto& done = own.done[static_cast<std::size_t>(action.microbatch)];
    if (action.kind == ActionKind::kForward) done.forward = own.free_at;
    if (is_awaited(action.kind)) done.gradient = own.free_at;
    ++own.next;
    return true;
  }

  double end() const {
    double last = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      SMP_ASSERT(ranks_[i].next == lists_.ranks[i].size(), "rank ", i, " never ends its list");
      last = std::max(last, ranks_[i].free_at);
    }
    return last;
  }

 private:
  struct Done {
    std::optional<double> forward, gradient;
  };
  struct Rank {
    std::size_t next = 0;
    double free_at = 0;
    std::vector<Done> done;  // by microbatch
  };

  /// True if the rank before waits for it.
  static bool is_awaited(ActionKind kind) noexcept {
    return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
  }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// Returns when the action may begin, or nothing if what it needs is not done yet.
  std::optional<double> when_ready(const Action& action, int rank) {
    const auto microbatch = static_cast<std::size_t>(action.microbatch);
    if (action.kind == ActionKind::kWeightGradient) return 0;
    if (action.kind == ActionKind::kForward) {
      return rank == 0 ? 0 : at(rank - 1).done[microbatch].forward;
    }
    const bool last = rank + 1 == lists_.pp_size();
    return last ? at(rank).done[microbatch].forward : at(rank + 1).done[microbatch].gradient;
  }

  const schedule::ScheduleLists& lists_;
  const ActionDuration& duration_;
  std::vector<Rank> ranks_;
};

}  // namespace

double time_in_fixed_order(const schedule::ScheduleLists& lists, const ActionDuration& duration) {
  Chain chain(lists, duration);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < lists.pp_size(); ++rank) {
      while (chain.advance(rank)) moved = true;
    }
  }
  return chain.end();
}

}  // namespace smp::simulate
