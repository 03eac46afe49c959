// schedule/list_check_test.cpp: each kind of fault is found and told, and only the first.
#include "schedule/list_check.h"

#include <gmock/gmock.h>

#include "schedule/list_generators.h"
#include "smp/error.h"

namespace smp::schedule {
namespace {

using testing::HasSubstr;

/// What is wrong with two microbatches on ranks with these lists.
std::string wrong(const std::vector<std::string>& ranks, int most_alive = 0) {
  std::string text = "smp-schedule 1\nmicrobatches 2\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += "rank " + std::to_string(rank) + ": " + ranks[rank] + "\n";
  }
  return first_violation(ScheduleLists::from_text(text, "own"), most_alive).value_or("nothing");
}

const char* const kLegal = "F0 B0 F1 B1";

TEST(ListCheck, FindsNothingInLegalLists) {
  EXPECT_EQ(wrong({kLegal}), "nothing");
  EXPECT_EQ(wrong({"F0 F1 B0 B1", kLegal}), "nothing");
  EXPECT_EQ(wrong({"F1 F0 B1 B0"}), "nothing") << "microbatches in any order";
  EXPECT_EQ(wrong({"F0 I0 F1 I1 W1 W0"}), "nothing");
  EXPECT_EQ(wrong({"F0 F1 I0 B1 W0"}), "nothing") << "one in parts, one whole";
}

TEST(ListCheck, AMicrobatchThatTheStepDoesNotHave) {
  EXPECT_EQ(wrong({"F0 F2"}),
            "rank 0, position 2, F2: there is no such microbatch; the last one is 1");
}

TEST(ListCheck, AnActionTwice) {
  EXPECT_EQ(wrong({kLegal, "F0 F0"}), "rank 1, position 2, F0: it was done before");
  EXPECT_EQ(wrong({"F0 B0 B0"}), "rank 0, position 3, B0: it was done before");
  EXPECT_EQ(wrong({"F0 I0 I0"}), "rank 0, position 3, I0: it was done before");
  EXPECT_EQ(wrong({"F0 I0 W0 W0"}), "rank 0, position 4, W0: it was done before");
}

TEST(ListCheck, ABackwardBeforeItsForward) {
  EXPECT_EQ(wrong({"F0 B1"}), "rank 0, position 2, B1: F1 must come first");
  EXPECT_EQ(wrong({"I0"}), "rank 0, position 1, I0: F0 must come first");
  EXPECT_EQ(wrong({"F0 W0"}), "rank 0, position 2, W0: I0 must come first");
}

TEST(ListCheck, ABackwardWholeAndInParts) {
  EXPECT_EQ(wrong({"F0 I0 B0"}),
            "rank 0, position 3, B0: its backward is in parts already, I0 came before");
  EXPECT_EQ(wrong({"F0 B0 I0"}), "rank 0, position 3, I0: B0 was its whole backward");
  EXPECT_EQ(wrong({"F0 B0 W0"}), "rank 0, position 3, W0: B0 was its whole backward");
}

TEST(ListCheck, SomethingIsMissing) {
  EXPECT_EQ(wrong({"F0 B0"}), "rank 0, position 3, end of its list: F1 is missing");
  EXPECT_EQ(wrong({"F0 F1 B1"}), "rank 0, position 4, end of its list: B0 is missing");
  EXPECT_EQ(wrong({"F0 I0 F1 B1"}), "rank 0, position 5, end of its list: W0 is missing");
  EXPECT_EQ(wrong({kLegal, ""}), "rank 1, position 1, end of its list: F0 is missing");
}

TEST(ListCheck, AWaitForAHigherMicrobatch) {
  EXPECT_EQ(wrong({"F1 B1 F0 B0"}),
            "rank 0, position 3, F0: it would wait for B1, which stands before it: the end of a "
            "higher microbatch; put F0 before B1");
  EXPECT_THAT(wrong({"F1 I1 W1 F0 B0"}), HasSubstr("it would wait for W1"));
  EXPECT_EQ(wrong({"F1 I1 F0 W1 B0"}), "nothing") << "only the end of a microbatch is waited for";
}

TEST(ListCheck, AWaitForAHigherMicrobatchThatIsNotTheLastToEnd) {
  const auto lists = ScheduleLists::from_text(
      "smp-schedule 1\nmicrobatches 4\nrank 0: F0 F3 B3 B0 F1 B1 F2 B2\n", "own");
  EXPECT_THAT(first_violation(lists).value_or(""),
              HasSubstr("position 5, F1: it would wait for B3"));
}

TEST(ListCheck, MoreMicrobatchesThanARankMayKeep) {
  EXPECT_EQ(wrong({"F0 F1 B0 B1"}, 1),
            "rank 0, position 2, F1: microbatches kept on the rank would be 2, and 1 is the most");
  EXPECT_EQ(wrong({"F0 I0 F1 W0 B1"}, 1),
            "rank 0, position 3, F1: microbatches kept on the rank would be 2, and 1 is the most")
      << "a microbatch is kept until its weight gradients are done";
  EXPECT_EQ(wrong({kLegal}, 1), "nothing");
  EXPECT_EQ(wrong({"F0 F1 B0 B1"}, 2), "nothing");
}

TEST(ListCheck, RanksThatWaitForEachOther) {
  EXPECT_EQ(wrong({"F0 B0 F1 B1", "F0 F1 B0 B1"}),
            "rank 0, position 2, B0: the ranks wait for each other: it needs the backward of "
            "microbatch 0 of rank 1; rank 1 stands at position 2, F1");
  EXPECT_EQ(wrong({"F0 F1 B0 B1", "F1 F0 B1 B0", "F0 F1 B0 B1"}), "nothing");
  EXPECT_THAT(wrong({"F0 F1 B0 B1", "F0 F1 B1 B0", "F0 B0 F1 B1"}), "nothing");
  EXPECT_EQ(wrong({"F0 I0 W0 F1 I1 W1", "F0 F1 I0 W0 I1 W1"}),
            "rank 0, position 2, I0: the ranks wait for each other: it needs the backward of "
            "microbatch 0 of rank 1; rank 1 stands at position 2, F1");
}

TEST(ListCheck, OnlyTheFirstFaultIsTold) {
  EXPECT_EQ(wrong({"F0 F0 B1 F7", "B0"}), "rank 0, position 2, F0: it was done before");
  EXPECT_EQ(wrong({kLegal, "B0", "F9"}), "rank 1, position 1, B0: F0 must come first");
}

TEST(ListCheck, TheErrorNamesTheFile) {
  const ScheduleLists lists{1, {{}}};
  try {
    check_lists(lists, "own.txt");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "own.txt: rank 0, position 1, end of its list: F0 is missing");
  }
  EXPECT_NO_THROW(check_lists(simple_lists(3, 2), "own.txt"));
}

}  // namespace
}  // namespace smp::schedule
