// With what ranks compute, and what is said if that differs.
#include "api/rank/computing.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

namespace smp {
namespace {

using testing::HasSubstr;

std::vector<GlobalRank> ranks(const std::vector<int>& numbers) {
  std::vector<GlobalRank> all;
  for (const int number : numbers) all.emplace_back(number);
  return all;
}

TEST(Computing, IsThatOfThisProcess) {
  const auto own = own_computing();
  EXPECT_EQ(own.threads, at::get_num_threads());
  EXPECT_THAT(own.processor, testing::MatchesRegex(".+ \\(.+\\)"));
}

TEST(Computing, SortsRanksByWhatTheyComputeWith) {
  const Computing few{1, "a"}, many{4, "a"}, other{1, "b"};
  const auto kinds = alike_ranks(ranks({0, 2, 4, 6}), {few, many, other, few});
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].ranks, ranks({0, 6}));
  EXPECT_EQ(kinds[1].computing, many);
  EXPECT_EQ(kinds[1].ranks, ranks({2}));
  EXPECT_EQ(kinds[2].computing, other);
}

TEST(Computing, WarnsOfDifferentNumbersOfThreads) {
  EXPECT_EQ(warning_of_threads({3}), "");
  EXPECT_EQ(warning_of_threads({2, 2, 2}), "");
  EXPECT_THAT(
      warning_of_threads({4, 4, 1, 4, 2}),
      HasSubstr("different numbers of threads: 4 on ranks 0-1, 3, 1 on rank 2, 2 on rank 4; "));
}

}  // namespace
}  // namespace smp
