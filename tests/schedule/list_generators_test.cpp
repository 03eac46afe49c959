// schedule/list_generators_test.cpp: small schedules in full, and that all of them are legal.
#include "schedule/list_generators.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/list_check.h"

namespace smp::schedule {
namespace {

std::string ranks_of(const ScheduleLists& lists) {
  const auto text = lists.to_text();
  return text.substr(text.find("rank 0"));
}

TEST(ListGenerators, SimpleRunsAllForwardsFirst) {
  EXPECT_EQ(ranks_of(simple_lists(2, 3)),
            "rank 0: F0 F1 F2 B0 B1 B2\n"
            "rank 1: F0 F1 F2 B0 B1 B2\n");
}

TEST(ListGenerators, OneForwardOneBackwardWarmsUpByTheDistanceToTheLastRank) {
  EXPECT_EQ(ranks_of(one_forward_one_backward_lists(3, 4)),
            "rank 0: F0 F1 F2 B0 F3 B1 B2 B3\n"
            "rank 1: F0 F1 B0 F2 B1 F3 B2 B3\n"
            "rank 2: F0 B0 F1 B1 F2 B2 F3 B3\n");
  EXPECT_EQ(ranks_of(one_forward_one_backward_lists(2, 4, 1)),
            "rank 0: F0 F1 F2 B0 F3 B1 B2 B3\n"
            "rank 1: F0 F1 B0 F2 B1 F3 B2 B3\n");
}

/// As in figure 3 of the paper.
TEST(ListGenerators, ZeroBubblePutsTheWeightGradientsOffByTheRank) {
  EXPECT_EQ(ranks_of(zero_bubble_lists(3, 4)),
            "rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3\n"
            "rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3\n"
            "rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3\n");
}

TEST(ListGenerators, AllAreLegalAndKeepNoMoreThanTheyPromise) {
  for (int pp_size = 1; pp_size <= 9; ++pp_size) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const int window = std::min(pp_size, microbatches);
      EXPECT_EQ(first_violation(simple_lists(pp_size, microbatches)), std::nullopt);
      for (const int more : {0, 1, 3}) {
        EXPECT_EQ(first_violation(one_forward_one_backward_lists(pp_size, microbatches, more),
                                  window + more),
                  std::nullopt);
      }
      EXPECT_EQ(first_violation(zero_bubble_lists(pp_size, microbatches), window), std::nullopt);
      const auto alive = one_forward_one_backward_lists(pp_size, microbatches).most_alive();
      for (int rank = 0; rank < pp_size; ++rank) {
        EXPECT_EQ(alive[rank], std::min(pp_size - rank, microbatches)) << "rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace smp::schedule
