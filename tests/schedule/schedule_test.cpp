// schedule/schedule_test.cpp: the answers of the two schedules, and a step played with them.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "schedule/list_generators.h"
#include "smp/error.h"

namespace smp::schedule {
namespace {

TEST(Simple, StartsEverythingAndHoldsBackwardUntilAllForwardsAreDone) {
  const auto schedule = make_simple();
  Progress progress{8, 7, 7, 0};
  EXPECT_TRUE(schedule->may_start(progress));
  EXPECT_FALSE(schedule->may_begin_backward(progress));
  progress.forward_done = 8;
  EXPECT_TRUE(schedule->may_begin_backward(progress));
}

TEST(Simple, PrefersForwardsThenLowerMicrobatches) {
  const auto schedule = make_simple();
  const Progress progress{4, 4, 0, 0};
  const auto forward3 = schedule->priority(Phase::kForward, 3, progress);
  const auto backward0 = schedule->priority(Phase::kBackward, 0, progress);
  EXPECT_LT(forward3, backward0);
  EXPECT_LT(backward0, schedule->priority(Phase::kBackward, 1, progress));
}

TEST(Interleaved, PrefersLowerMicrobatchesAndForwardsUpToTheLead) {
  const Progress progress{16, 16, 0, 0};
  for (const int lead : {0, 1, 3}) {
    const auto schedule = make_interleaved(8, lead);
    for (int backward = 0; backward < 16; ++backward) {
      const auto place = schedule->priority(Phase::kBackward, backward, progress);
      EXPECT_GE(place, 0);
      EXPECT_LT(place, schedule->priority(Phase::kBackward, backward + 1, progress));
      for (int forward = 0; forward < 16; ++forward) {
        const auto other = schedule->priority(Phase::kForward, forward, progress);
        EXPECT_EQ(other < place, forward < backward + lead) << forward << ", " << backward;
        EXPECT_LT(other, schedule->priority(Phase::kForward, forward + 1, progress));
      }
    }
  }
}

/// None where what is in flight only fills the pipeline, and never more than its length.
TEST(Interleaved, HasALeadIfMicrobatchesAreToSpare) {
  const Progress progress{64, 64, 0, 0};
  const auto lead_of = [&](int stages, int active) {
    const auto schedule = make_schedule("interleaved", {stages, 64, active});
    int lead = 0;
    while (schedule->priority(Phase::kForward, lead, progress) <
           schedule->priority(Phase::kBackward, 0, progress)) {
      ++lead;
    }
    return lead;
  };
  EXPECT_EQ(lead_of(4, 1), 0);
  EXPECT_EQ(lead_of(4, 6), 0);
  EXPECT_EQ(lead_of(4, 7), 1);
  EXPECT_EQ(lead_of(4, 10), 4);
  EXPECT_EQ(lead_of(4, 64), 4);
  EXPECT_EQ(lead_of(8, 18), 8);
}

TEST(Interleaved, NeverHasMoreInFlightThanItsCap) {
  for (int cap = 1; cap <= 5; ++cap) {
    const auto schedule = make_interleaved(cap);
    Progress progress{12, 0, 0, 0};
    int most = 0;
    while (progress.finished < progress.microbatches) {
      while (progress.started < progress.microbatches && schedule->may_start(progress)) {
        ++progress.started;
      }
      most = std::max(most, progress.in_flight());
      ++progress.finished;
    }
    EXPECT_EQ(most, cap);
  }
}

TEST(Schedules, AreMadeByName) {
  for (const char* name : {"simple", "interleaved", "1f1b", "zero_bubble", "1f1b+2"}) {
    EXPECT_STREQ(make_schedule(name, {.pp_size = 4, .microbatches = 8})->name(), name);
  }
  for (const char* name : {"gpipe", "1f1b+", "1f1b+x", "1f1b+-1", "gpipe+1", "simple+1"}) {
    EXPECT_THROW((void)make_schedule(name, {}), UsageError) << name;
  }
  EXPECT_THROW((void)make_schedule("interleaved", {.active_microbatches = 0}), UsageError);
}

TEST(Schedules, KnowHowManyMicrobatchesARankKeeps) {
  const StepShape shape{.pp_size = 4, .microbatches = 8, .active_microbatches = 6};
  EXPECT_EQ(make_schedule("simple", shape)->most_alive(3, 8), 8);
  EXPECT_EQ(make_schedule("interleaved", shape)->most_alive(3, 8), 6);
  EXPECT_EQ(make_schedule("interleaved", shape)->most_alive(3, 5), 5);
  EXPECT_EQ(make_schedule("1f1b", shape)->most_alive(3, 8), 1);
  EXPECT_EQ(make_schedule("zero_bubble", shape)->most_alive(3, 8), 4);
  EXPECT_EQ(make_schedule("1f1b+2", shape)->most_alive(3, 8), 3);
  EXPECT_EQ(make_schedule("1f1b+1000000", shape)->most_alive(3, 8), 8);
  EXPECT_EQ(make_schedule("zero_bubble+2", shape)->most_alive(3, 8), 6);
}

TEST(Schedules, RunInTheOrderOfTheirLists) {
  for (const int more : {0, 1}) {
    const auto schedule =
        make_schedule("1f1b+" + std::to_string(more), {.pp_size = 3, .microbatches = 6});
    const Progress progress{.microbatches = 6, .pp_rank = 1};
    const auto place = [&](Phase phase, int i) { return schedule->priority(phase, i, progress); };
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(place(Phase::kForward, i), place(Phase::kForward, i + 1));
      EXPECT_LT(place(Phase::kForward, i + 1 + more), place(Phase::kBackward, i));
      EXPECT_LT(place(Phase::kBackward, i), place(Phase::kForward, i + 2 + more));
    }
  }
}

class ScheduleFile : public testing::Test {
 protected:
  /// What is wrong with a file of this text, for 2 ranks and 3 microbatches.
  std::string error_of(const std::string& text) const {
    base::write_file(path_, text);
    try {
      (void)make_schedule("file:" + path_, {.pp_size = 2, .microbatches = 3});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "/schedule_test.txt";
};

TEST_F(ScheduleFile, IsASchedule) {
  const auto lists = one_forward_one_backward_lists(2, 3);
  EXPECT_EQ(error_of(lists.to_text()), "no error");
  const auto schedule = make_schedule("file:" + path_, {.pp_size = 2, .microbatches = 3});
  EXPECT_EQ(schedule->name(), "file:" + path_);
  EXPECT_EQ(schedule->most_alive(0, 3), 2);
}

TEST_F(ScheduleFile, MustFitTheStepAndBeLegal) {
  EXPECT_EQ(error_of(simple_lists(3, 3).to_text()),
            path_ + ": a schedule for 3 ranks, and the pipeline has 2");
  EXPECT_EQ(error_of(simple_lists(2, 4).to_text()),
            path_ +
                ": a schedule for 4 microbatches, and a step has 3; change the file or the key "
                "microbatches");
  auto lists = simple_lists(2, 3);
  lists.ranks[1].pop_back();
  EXPECT_EQ(error_of(lists.to_text()),
            path_ + ": rank 1, position 6, end of its list: B2 is missing");
  std::filesystem::remove(path_);
  EXPECT_THROW((void)make_schedule("file:" + path_, {.pp_size = 2}), UsageError);
}

}  // namespace
}  // namespace smp::schedule
