// schedule/schedule_lists_test.cpp: lists to text and back, and every way in which a text is wrong.
#include "schedule/schedule_lists.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/files.h"
#include "schedule/list_generators.h"
#include "smp/error.h"

namespace smp::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    (void)ScheduleLists::from_text(text, "own.txt");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScheduleLists, AreWrittenOneLineARank) {
  using enum ActionKind;
  const ScheduleLists lists{
      2, {{{kForward, 0}, {kBackward, 0}}, {{kInputGradient, 1}, {kWeightGradient, 12}}}};
  EXPECT_EQ(lists.to_text(), "smp-schedule 1\nmicrobatches 2\nrank 0: F0 B0\nrank 1: I1 W12\n");
}

TEST(ScheduleLists, ComeBackFromTheirText) {
  for (const int pp_size : {1, 2, 4}) {
    for (const int microbatches : {1, 3, 9}) {
      for (const auto& lists : {simple_lists(pp_size, microbatches),
                                one_forward_one_backward_lists(pp_size, microbatches),
                                zero_bubble_lists(pp_size, microbatches)}) {
        EXPECT_EQ(ScheduleLists::from_text(lists.to_text(), "again"), lists) << lists.to_text();
      }
    }
  }
}

TEST(ScheduleLists, PassOverCommentsEmptyLinesAndTheOrderOfRanks) {
  const auto lists = ScheduleLists::from_text(
      "# by hand\n\nsmp-schedule 1\nmicrobatches 1  # only one\nrank 1: F0 B0\r\n\n"
      "rank 0:\tF0 B0 # done\n",
      "own.txt");
  EXPECT_EQ(lists, simple_lists(2, 1));
}

TEST(ScheduleLists, GoThroughAFile) {
  const auto path = testing::TempDir() + "/schedule_lists_test.txt";
  const auto lists = zero_bubble_lists(3, 5);
  lists.write(path);
  EXPECT_EQ(ScheduleLists::read(path), lists);
  std::filesystem::remove(path);
  EXPECT_THROW((void)ScheduleLists::read(path), UsageError);
}

TEST(ScheduleLists, MayBeQuotedInJson) {
  const auto path = (std::filesystem::temp_directory_path() / "smp_quoted_lists.json").string();
  base::write_file(path,
                   "{\n  \"lists\": \"smp-schedule 1\\nmicrobatches 1\\nrank 0: F0 B0\\n\",\n"
                   "  \"other\": \"smp-schedule 2\"\n}\n");
  EXPECT_EQ(ScheduleLists::read(path).to_text(), "smp-schedule 1\nmicrobatches 1\nrank 0: F0 B0\n");
  base::write_file(path, "{}");
  EXPECT_THROW((void)ScheduleLists::read(path), UsageError);
  std::filesystem::remove(path);
}

TEST(ScheduleLists, KnowWhatEachRankKeepsAndWhetherABackwardIsSplit) {
  EXPECT_THAT(simple_lists(3, 5).most_alive(), ElementsAre(5, 5, 5));
  EXPECT_THAT(one_forward_one_backward_lists(3, 5).most_alive(), ElementsAre(3, 2, 1));
  EXPECT_THAT(zero_bubble_lists(3, 5).most_alive(), ElementsAre(3, 3, 3));
  EXPECT_FALSE(one_forward_one_backward_lists(3, 5).splits_backward());
  EXPECT_TRUE(zero_bubble_lists(3, 5).splits_backward());
}

TEST(ScheduleLists, SayWhatIsWrongWithAText) {
  const std::string head = "smp-schedule 1\nmicrobatches 2\n";
  EXPECT_THAT(error_of(""), HasSubstr("own.txt: no schedule"));
  EXPECT_THAT(error_of("{\"rows\": []}"), HasSubstr("must begin with the line \"smp-schedule 1\""));
  EXPECT_THAT(error_of("smp-schedule 2\n"), HasSubstr("version 2 of the format; this is 1"));
  EXPECT_THAT(error_of("smp-schedule 1\nrank 0: F0\n"),
              HasSubstr("own.txt, line 2: expected \"microbatches M\""));
  EXPECT_THAT(error_of("smp-schedule 1\nmicrobatches 0\n"), HasSubstr("M from 1"));
  EXPECT_THAT(error_of("smp-schedule 1\nmicrobatches 2000000\n"), HasSubstr("to 1000000"));
  EXPECT_THAT(error_of("smp-schedule 1\nmicrobatches 99999999999\n"), HasSubstr("M from 1"));
  EXPECT_THAT(error_of(head), HasSubstr("there is no line \"rank 0: F0 ...\""));
  EXPECT_THAT(error_of(head + "rank 1: F0\n"), HasSubstr("there is no line for rank 0"));
  EXPECT_THAT(error_of(head + "rank 0: F0\nrank 0: B0\n"),
              HasSubstr("line 4: rank 0 has a line already"));
  EXPECT_THAT(error_of(head + "rank 0:F0\n"), HasSubstr("line 3: expected \"rank R: F0 ...\""));
  EXPECT_THAT(error_of(head + "rank 0 F0\n"), HasSubstr("line 3: expected \"rank R: F0 ...\""));
  EXPECT_THAT(error_of(head + "stage 0: F0\n"), HasSubstr("line 3: expected \"rank R: F0 ...\""));
  for (const char* word : {"X1", "F", "F-1", "F1x", "f1", "F1,"}) {
    EXPECT_THAT(
        error_of(head + "rank 0: F0 " + word + "\n"),
        HasSubstr("line 3: rank 0, position 2: \"" + std::string(word) + "\" is no action"));
  }
}

}  // namespace
}  // namespace smp::schedule
