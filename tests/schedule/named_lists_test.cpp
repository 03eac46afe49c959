// Names of schedules as lists: those of the generators, whose text comes back from a file.
#include "schedule/named_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "schedule/list_generators.h"
#include "smp/error.h"

namespace smp::schedule {
namespace named_lists_test {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr StepShape kShape{.pp_size = 3, .microbatches = 4, .active_microbatches = 3};

TEST(NamedLists, AreThoseOfTheGenerators) {
  EXPECT_EQ(lists_named("simple", kShape), simple_lists(3, 4));
  EXPECT_EQ(lists_named("1f1b", kShape), one_forward_one_backward_lists(3, 4));
  EXPECT_EQ(lists_named("1f1b+1", kShape), one_forward_one_backward_lists(3, 4, 1));
  EXPECT_EQ(lists_named("zero_bubble", kShape), zero_bubble_lists(3, 4));
  EXPECT_EQ(lists_named("zero_bubble+2", kShape), zero_bubble_lists(3, 4, 2));
}

TEST(NamedLists, ComeBackFromAFile) {
  const auto path = std::filesystem::temp_directory_path() / "smp_named_lists_test.txt";
  const auto lists = lists_named("zero_bubble+1", kShape);
  lists.write(path);
  EXPECT_EQ(lists_named("file:" + path.string(), kShape), lists);
  EXPECT_THAT(
      [&] { (void)lists_named("file:" + path.string(), {.pp_size = 2, .microbatches = 4}); },
      ThrowsMessage<UsageError>(HasSubstr("a schedule for 3 ranks")));
  EXPECT_THAT(
      [&] { (void)lists_named("file:" + path.string(), {.pp_size = 3, .microbatches = 5}); },
      ThrowsMessage<UsageError>(HasSubstr("for 4 microbatches")));
  std::filesystem::remove(path);
}

TEST(NamedLists, OfOtherNamesAreRefused) {
  EXPECT_THAT([] { (void)lists_named("interleaved", kShape); },
              ThrowsMessage<UsageError>(HasSubstr("no lists")));
  for (const char* const name : {"", "gpipe", "1f1b+", "1f1b+-1", "1f1b+x", "zero_bubble2"}) {
    EXPECT_THAT([&] { (void)lists_named(name, kShape); },
                ThrowsMessage<UsageError>(HasSubstr("unknown pipeline schedule")));
  }
}

}  // namespace named_lists_test
}  // namespace smp::schedule
