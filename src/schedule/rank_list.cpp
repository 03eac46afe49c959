// schedule/rank_list.cpp: places and windows of a list, and who was overtaken.
#include "schedule/rank_list.h"

#include <utility>

namespace smp::schedule {
namespace {

Phase phase_of(ActionKind kind) noexcept {
  if (kind == ActionKind::kForward) return Phase::kForward;
  return kind == ActionKind::kWeightGradient ? Phase::kWeightGradient : Phase::kBackward;
}

}  // namespace

RankList::RankList(std::vector<Action> actions, int microbatches)
    : actions_(std::move(actions)),
      places_(3 * static_cast<std::size_t>(microbatches),
              static_cast<std::int64_t>(actions_.size())),
      ends_before_(static_cast<std::size_t>(microbatches)) {
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const auto& action = actions_[i];
    const auto microbatch = static_cast<std::size_t>(action.microbatch);
    places_[3 * microbatch + kind_of(phase_of(action.kind))] = static_cast<std::int64_t>(i);
    if (action.ends_microbatch()) ends_.push_back(action.microbatch);
    if (action.kind == ActionKind::kForward) {
      ends_before_[microbatch] = static_cast<int>(ends_.size());
    }
  }
}

ListProgress::ListProgress(const RankList* list, int microbatches)
    : list_(list), microbatches_(microbatches) {
  if (list_ == nullptr) return;
  begun_.resize(list_->actions().size());
  advance();
}

void ListProgress::begin(Phase phase, int microbatch) {
  if (list_ == nullptr || !list_->has(phase, microbatch)) return;
  mark(list_->place(phase, microbatch));
  advance();
}

void ListProgress::end(int microbatch) {
  if (list_ == nullptr) return;
  for (const auto phase : {Phase::kForward, Phase::kBackward, Phase::kWeightGradient}) {
    if (list_->has(phase, microbatch)) mark(list_->place(phase, microbatch));
  }
  advance();
}

void ListProgress::mark(std::int64_t place) noexcept {
  begun_[static_cast<std::size_t>(place)] = true;
}

void ListProgress::advance() noexcept {
  const auto& actions = list_->actions();
  const auto counts = [&](std::int64_t place) {
    const auto index = static_cast<std::size_t>(place);
    return !begun_[index] && actions[index].microbatch < microbatches_;
  };
  while (next_ < static_cast<std::int64_t>(actions.size()) && !counts(next_)) ++next_;
}

}  // namespace smp::schedule
