// schedule/list_generators.cpp: warm-up, a steady part, and what is left.
#include "schedule/list_generators.h"

#include <algorithm>

#include "base/check.h"

namespace smp::schedule {
namespace {

using enum ActionKind;

ScheduleLists empty_lists(int pp_size, int microbatches) {
  SMP_ASSERT(pp_size >= 1 && microbatches >= 1, pp_size, " ranks, ", microbatches, " microbatches");
  return {microbatches, std::vector<std::vector<Action>>(static_cast<std::size_t>(pp_size))};
}

/// Appends `ahead` forwards, then for each microbatch a forward (while there are some) and the
/// actions that `backward` appends.
template <class Backward>
void fill(std::vector<Action>& actions, int microbatches, int ahead, Backward backward) {
  int forward = 0;
  while (forward < std::min(ahead, microbatches)) actions.push_back({kForward, forward++});
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    if (forward < microbatches) actions.push_back({kForward, forward++});
    backward(microbatch);
  }
}

}  // namespace

ScheduleLists simple_lists(int pp_size, int microbatches) {
  return one_forward_one_backward_lists(pp_size, microbatches, microbatches);
}

ScheduleLists one_forward_one_backward_lists(int pp_size, int microbatches, int more) {
  auto lists = empty_lists(pp_size, microbatches);
  int ahead = pp_size - 1 + more;
  for (auto& actions : lists.ranks) {
    fill(actions, microbatches, ahead--, [&](int i) { actions.push_back({kBackward, i}); });
  }
  return lists;
}

ScheduleLists zero_bubble_lists(int pp_size, int microbatches, int more) {
  auto lists = empty_lists(pp_size, microbatches);
  for (int rank = 0; rank < pp_size; ++rank) {
    auto& actions = lists.ranks[static_cast<std::size_t>(rank)];
    int weights = 0;
    fill(actions, microbatches, pp_size - rank - 1 + more, [&](int i) {
      actions.push_back({kInputGradient, i});
      if (i >= rank) actions.push_back({kWeightGradient, weights++});
    });
    while (weights < microbatches) actions.push_back({kWeightGradient, weights++});
  }
  return lists;
}

}  // namespace smp::schedule
