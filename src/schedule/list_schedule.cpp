// schedule/list_schedule.cpp: from the list of each rank to its windows and priorities.
#include "schedule/list_schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "schedule/rank_list.h"

namespace smp::schedule {
namespace {

/// The longest time for which work is held back, in multiples of its usual time.
constexpr double kHold = 2;

/// True if a rank is better off holding work back: if it may have begun fewer than a quarter of the
/// ranks more microbatches than keep the ranks behind it busy (`more`). With more, or where weight
/// gradients fill the gaps, waiting only costs time. Found by simulation (docs/schedules.md).
bool gains_by_holding(int more, int ranks, bool splits_backward) noexcept {
  return more <= 0 || (!splits_backward && 4 * more < ranks);
}

/// Returns the most microbatches whose forward has begun and whose backward, of inputs at least,
/// has not.
int most_ahead(const std::vector<Action>& actions) noexcept {
  int ahead = 0, most = 0;
  for (const auto& action : actions) {
    if (action.kind == ActionKind::kForward) {
      most = std::max(most, ++ahead);
    } else if (action.kind != ActionKind::kWeightGradient) {
      --ahead;
    }
  }
  return most;
}

class ListSchedule final : public Schedule {
 public:
  ListSchedule(std::string name, const ScheduleLists& lists)
      : name_(std::move(name)), most_alive_(lists.most_alive()) {
    for (int rank = 0; rank < lists.pp_size(); ++rank) {
      const auto& actions = lists.ranks[static_cast<std::size_t>(rank)];
      ranks_.emplace_back(actions, lists.microbatches);
      const int more = most_ahead(actions) - (lists.pp_size() - rank);
      holds_.push_back(gains_by_holding(more, lists.pp_size(), lists.splits_backward()));
    }
  }

  const char* name() const noexcept override { return name_.c_str(); }
  bool may_start(const Progress&) const noexcept override { return true; }
  bool may_begin_backward(const Progress&) const noexcept override { return true; }

  std::int64_t priority(Phase phase, int microbatch, const Progress& p) const noexcept override {
    return ranks_[static_cast<std::size_t>(p.pp_rank)].place(phase, microbatch);
  }

  const RankList* list(int pp_rank) const override {
    SMP_ASSERT(pp_rank < static_cast<int>(ranks_.size()), "schedule ", name_, " has no rank ",
               pp_rank);
    return &ranks_[static_cast<std::size_t>(pp_rank)];
  }
  /// Returns 0 for pp_rank 0, whose bodies start as its list says, and what they call there follows
  /// from that; and for weight gradients, which fill what would be a bubble: in simulation they
  /// never gain by standing aside.
  double hold(int pp_rank, Phase phase) const noexcept override {
    if (pp_rank == 0 || phase == Phase::kWeightGradient) return 0;
    return holds_[static_cast<std::size_t>(pp_rank)] ? kHold : 0;
  }
  int most_alive(int pp_rank, int microbatches) const noexcept override {
    return std::min(most_alive_[static_cast<std::size_t>(pp_rank)], microbatches);
  }
  bool splits_backward(int pp_rank, int microbatch) const noexcept override {
    return list(pp_rank)->has(Phase::kWeightGradient, microbatch);
  }

 private:
  std::string name_;
  std::vector<int> most_alive_;  // by rank
  std::vector<RankList> ranks_;  // by rank
  std::vector<bool> holds_;      // by rank
};

}  // namespace

std::unique_ptr<Schedule> make_list_schedule(std::string name, const ScheduleLists& lists) {
  return std::make_unique<ListSchedule>(std::move(name), lists);
}

}  // namespace smp::schedule
