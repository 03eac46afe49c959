// Facts of ranks are compared by name, whatever the libraries of others know.
#include "api/rank/agreement.h"

#include <gmock/gmock.h>

#include <limits>

#include "support/refusal.h"

namespace smp {
namespace agreement_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::vector<GlobalRank> kRanks = {GlobalRank(4), GlobalRank(7)};

Facts settings(const std::string& microbatches) {
  return {{"pipeline", "\"interleaved\"", "default"},
          {"microbatches", microbatches, "flag --smp.microbatches"}};
}

/// What a rank with `own` facts says of another that has `others`.
std::string said_of(const Facts& own, const Facts& others) {
  std::vector<std::string> theirs;  // what the other rank gives, in order of calls
  const GatherTexts listen = [&](const std::string& text) {
    theirs.push_back(text);
    return std::vector<std::string>{theirs.size() == 1 ? text + "?" : text, text};
  };
  EXPECT_THROW(require_same(listen, kRanks, others, "the settings", ""), UsageError);
  std::size_t call = 0;
  const GatherTexts gather = [&](const std::string& text) {
    return std::vector<std::string>{text, theirs.at(call++)};
  };
  return refusal<UsageError>(
      [&] { require_same(gather, kRanks, own, "the settings", "give all the same"); });
}

TEST(Agreement, NamesWhatDiffersAndNothingElse) {
  EXPECT_EQ(said_of(settings("4"), settings("8")),
            "the settings differ: microbatches: 4 (flag --smp.microbatches) on rank 4, 8 (flag "
            "--smp.microbatches) on rank 7; give all the same");
}

TEST(Agreement, NamesWhatOneRankDoesNotKnow) {
  auto without_first = settings("8");
  without_first.erase(without_first.begin());
  EXPECT_THAT(said_of(settings("4"), without_first),
              AllOf(HasSubstr("pipeline: \"interleaved\" (default) on rank 4, unknown on rank 7; "),
                    HasSubstr("microbatches: 4 (")));
  EXPECT_THAT(said_of(without_first, settings("8")),
              AllOf(HasSubstr("pipeline: unknown on rank 4, \"interleaved\" (default) on rank 7"),
                    Not(HasSubstr("microbatches"))));
}

TEST(Agreement, IsOneOfValuesWhateverTheirOrigins) {
  const GatherTexts same = [](const std::string& text) { return std::vector{text, text}; };
  EXPECT_NO_THROW(require_same(same, kRanks, settings("4"), "the settings", ""));
  auto elsewhere = settings("4");
  elsewhere[1].origin = "the file";
  std::vector<std::string> hashes;
  const GatherTexts note = [&](const std::string& text) {
    hashes.push_back(text);
    return std::vector{text, text};
  };
  require_same(note, kRanks, settings("4"), "the settings", "");
  require_same(note, kRanks, elsewhere, "the settings", "");
  EXPECT_EQ(hashes.at(0), hashes.at(1));
  EXPECT_THAT(differences(kRanks, {settings("4"), elsewhere}), IsEmpty());
}

TEST(Agreement, ComparesFactsOfOneNameInTheirOrder) {
  const Facts own = {{"module ''", "A"}, {"module ''", "B"}};
  EXPECT_THAT(differences(kRanks, {own, {{"module ''", "A"}, {"module ''", "C"}}}),
              ElementsAre("module '': B on rank 4, C on rank 7"));
}

TEST(Agreement, ShowsNumbersThatDifferAsTextsThatDiffer) {
  EXPECT_EQ(text_of(0.1), "0.1");
  EXPECT_NE(text_of(0.1), text_of(0.1 + std::numeric_limits<double>::epsilon() / 8));
}

}  // namespace agreement_test
}  // namespace smp
