// api/model/candidate_table_test.cpp: modules that share a fate share a line.
#include "api/model/candidate_table.h"

#include <gmock/gmock.h>

namespace smp {
namespace candidate_table_test {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(CandidateTable, IsEmptyWithoutCandidates) { EXPECT_THAT(candidate_table({}, 2), IsEmpty()); }

TEST(CandidateTable, HasALineForEachClassAndFate) {
  const auto table = candidate_table(
      {
          {"layers.0.out", "LinearImpl", true, ""},
          {"layers.0.norm", "LayerNormImpl", false, "not marked"},
          {"layers.1.out", "LinearImpl", true, ""},
          {"layers.1.norm", "LayerNormImpl", false, "not marked"},
          {"layers.2.out", "LinearImpl", true, "out_features 3 cannot be divided by 2"},
          {"", "EmbeddingImpl", false, "not marked"},
          {"0.1.2", "LinearImpl", true, ""},
          {"0.1.3", "LinearImpl", true, ""},
          {"2d", "LinearImpl", true, ""},
          {"head", "DistributedLinearImpl", true, "", true},
      },
      2);
  EXPECT_THAT(
      table, AllOf(HasSubstr("What 2 tensor-parallel ranks share:\n"),
                   ContainsRegex("layers\\.\\*\\.out +2 +LinearImpl +spread"),
                   ContainsRegex("layers\\.\\*\\.norm +2 +LayerNormImpl +whole: not marked"),
                   ContainsRegex("layers\\.2\\.out +1 +LinearImpl +whole: out_features 3"),
                   ContainsRegex("\n\\*\\.\\*\\.\\* +2 +LinearImpl +spread"),
                   ContainsRegex("\n2d +1 +LinearImpl +spread"),
                   ContainsRegex("head +1 +DistributedLinearImpl +spread, as it was built"),
                   ContainsRegex("\\(the model\\) +1 +EmbeddingImpl"), Not(HasSubstr("layers.0"))));
}

}  // namespace candidate_table_test
}  // namespace smp
