#include "simulate/fixed_order.h"

#include <gtest/gtest.h>

#include "schedule/list_generators.h"

namespace smp::simulate {
namespace {

using schedule::Action;
using schedule::ActionKind;

/// F 1, B 2, I 1, W 1.
double usual(const Action& action, int) { return action.kind == ActionKind::kBackward ? 2 : 1; }

TEST(FixedOrder, OneForwardOneBackwardIsIdealInAChainOfEqualStages) {
  for (const int p : {1, 2, 5}) {
    for (const int m : {1, 4, 9}) {
      const auto lists = schedule::one_forward_one_backward_lists(p, m);
      EXPECT_EQ(time_in_fixed_order(lists, usual), 3 * (m + p - 1)) << p << ", " << m;
    }
  }
}

TEST(FixedOrder, ZeroBubbleWaitsForForwardsOnly) {
  EXPECT_EQ(time_in_fixed_order(schedule::zero_bubble_lists(4, 12), usual), 3 * 12 + 3);
}

TEST(FixedOrder, ALateActionPutsOffAllThatFollows) {
  const auto lists = schedule::one_forward_one_backward_lists(3, 4);
  const auto late = [](const Action& action, int rank) {
    const bool first = action == Action{ActionKind::kForward, 0} && rank == 0;
    return usual(action, rank) + (first ? 7 : 0);
  };
  EXPECT_EQ(time_in_fixed_order(lists, late), time_in_fixed_order(lists, usual) + 7);
}

}  // namespace
}  // namespace smp::simulate
