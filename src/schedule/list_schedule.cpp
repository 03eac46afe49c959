// schedule/list_schedule.cpp: from the list of each rank to its windows and priorities.
#include "schedule/list_schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace smp::schedule {
namespace {

/// Positions in a rank's list, by microbatch; what is not in the list stands behind all.
struct Positions {
  std::vector<std::int64_t> forward, backward, weight;
};

struct RankList {
  std::int64_t actions = 0;
  RankWindows windows;
  Positions positions;
};

RankList read_list(const std::vector<Action>& actions, int microbatches) {
  const auto count = static_cast<std::size_t>(microbatches);
  const auto length = static_cast<std::int64_t>(actions.size());
  const std::vector<std::int64_t> behind(count, length);
  RankList list{length, {{}, std::vector<int>(count)}, {behind, behind, behind}};
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    const auto microbatch = static_cast<std::size_t>(action.microbatch);
    auto& positions = action.kind == ActionKind::kForward          ? list.positions.forward
                      : action.kind == ActionKind::kWeightGradient ? list.positions.weight
                                                                   : list.positions.backward;
    positions[microbatch] = static_cast<std::int64_t>(i);
    if (action.ends_microbatch()) list.windows.ends.push_back(action.microbatch);
    if (action.kind == ActionKind::kForward) {
      list.windows.ends_before[microbatch] = static_cast<int>(list.windows.ends.size());
    }
  }
  return list;
}

class ListSchedule final : public Schedule {
 public:
  ListSchedule(std::string name, const ScheduleLists& lists)
      : name_(std::move(name)), most_alive_(lists.most_alive()) {
    for (const auto& actions : lists.ranks) {
      ranks_.push_back(read_list(actions, lists.microbatches));
    }
  }

  const char* name() const noexcept override { return name_.c_str(); }
  bool may_start(const Progress&) const noexcept override { return true; }
  bool may_begin_backward(const Progress&) const noexcept override { return true; }

  std::int64_t priority(Phase phase, int microbatch, const Progress& p) const noexcept override {
    const auto& positions = ranks_[static_cast<std::size_t>(p.pp_rank)].positions;
    const auto& of_phase = phase == Phase::kForward          ? positions.forward
                           : phase == Phase::kWeightGradient ? positions.weight
                                                             : positions.backward;
    return of_phase[static_cast<std::size_t>(microbatch)];
  }

  const RankWindows* windows(int pp_rank) const override {
    SMP_ASSERT(pp_rank < static_cast<int>(ranks_.size()), "schedule ", name_, " has no rank ",
               pp_rank);
    return &ranks_[static_cast<std::size_t>(pp_rank)].windows;
  }
  int most_alive(int pp_rank, int microbatches) const noexcept override {
    return std::min(most_alive_[static_cast<std::size_t>(pp_rank)], microbatches);
  }
  bool splits_backward(int pp_rank, int microbatch) const noexcept override {
    const auto& list = ranks_[static_cast<std::size_t>(pp_rank)];
    return list.positions.weight[static_cast<std::size_t>(microbatch)] < list.actions;
  }

 private:
  std::string name_;
  std::vector<int> most_alive_;  // by rank
  std::vector<RankList> ranks_;
};

}  // namespace

std::unique_ptr<Schedule> make_list_schedule(std::string name, const ScheduleLists& lists) {
  return std::make_unique<ListSchedule>(std::move(name), lists);
}

}  // namespace smp::schedule
