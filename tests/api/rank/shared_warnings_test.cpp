// What several ranks warn about alike: one line, with the ranks.
#include "api/rank/shared_warnings.h"

#include <gmock/gmock.h>

#include "api/rank/rank.h"
#include "api/state/session_state.h"
#include "base/log.h"
#include "smp/session.h"

namespace smp {
namespace shared_warnings_test {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<GlobalRank> ranks_of(std::initializer_list<int> numbers) {
  std::vector<GlobalRank> ranks;
  for (const int number : numbers) ranks.emplace_back(number);
  return ranks;
}

TEST(SharedWarnings, NameRanksAsRunsOfNumbers) {
  EXPECT_EQ(names_of(ranks_of({2})), "rank 2");
  EXPECT_EQ(names_of(ranks_of({0, 1})), "ranks 0-1");
  EXPECT_EQ(names_of(ranks_of({0, 2, 5, 6, 7})), "ranks 0, 2, 5-7");
}

TEST(SharedWarnings, AreMergedByTheirText) {
  const auto ranks = ranks_of({4, 5, 6});
  EXPECT_THAT(merged_warnings(ranks, {{"a", "b"}, {"b", "b"}, {"c", "a", "b"}}),
              ElementsAre("ranks 4, 6: a", "ranks 4-6: b", "rank 6: c"));
  EXPECT_THAT(merged_warnings(ranks, {{}, {}, {}}), IsEmpty());
}

TEST(SharedWarnings, OfARankThatIsAloneNeedNoName) {
  EXPECT_THAT(merged_warnings(ranks_of({0}), {{"a", "a", "b"}}), ElementsAre("a", "b"));
}

TEST(SharedWarnings, ArePrintedOnceWhereRanksMeet) {
  const base::LogCapture capture;
  base::set_log_rank(0);
  run_local(3, [] {
    auto& warnings = SessionState::current().warnings();
    warnings.note("the same");
    if (rank() > 0) warnings.note("of some");
    for (int meeting = 0; meeting < 2; ++meeting) {
      warnings.meet(Rank::current().groups().of(Group::kWorld));
    }
    warnings.note("of rank " + std::to_string(rank()));
  });
  EXPECT_THAT(capture.text(), testing::StartsWith("[smp W rank 0] ranks 0-2: the same\n"
                                                  "[smp W rank 0] ranks 1-2: of some\n"));
  for (int rank = 0; rank < 3; ++rank) {  // no meeting came for these
    EXPECT_THAT(capture.text(),
                testing::HasSubstr("[smp W rank 0] of rank " + std::to_string(rank) + "\n"));
  }
}

}  // namespace shared_warnings_test
}  // namespace smp
