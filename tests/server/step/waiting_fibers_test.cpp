// Fibers that wait for a number: woken by number, each once, and forgotten however their wait ends.
#include "server/step/waiting_fibers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/backward/dead_frames.h"
#include "support/refusal.h"

namespace smp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Simulated time, first come, first served.
class WaitingFibersTest : public ::testing::Test {
 protected:
  void arrive(int number) {
    scheduler_.spawn(
        [this, number] {
          waiting_.wait(number, kTurn);
          gone_.push_back(number);
        },
        {}, 1 << 20);
    let_run();
  }
  void let_run() {
    for (int i = 0; i < 10; ++i) scheduler_.yield();
  }
  /// Every number that wake() asks about.
  std::vector<int> asked() const {
    std::vector<int> numbers;
    waiting_.wake([&](int number) {
      numbers.push_back(number);
      return false;
    });
    return numbers;
  }

  static constexpr fiber::WaitReason kTurn{"its turn", "", -1, -1};
  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  WaitingFibers waiting_;
  std::vector<int> gone_;
};

TEST_F(WaitingFibersTest, WakesThoseWhoseTurnItIs) {
  for (const int number : {3, 1, 2, 1}) arrive(number);
  EXPECT_THAT(asked(), ElementsAre(3, 1, 2, 1));
  waiting_.wake([](int number) { return number == 1; });
  EXPECT_THAT(gone_, IsEmpty()) << "they are woken, they do not run yet";
  let_run();
  EXPECT_THAT(gone_, ElementsAre(1, 1));
  EXPECT_THAT(asked(), UnorderedElementsAre(2, 3));
  waiting_.wake_all();
  let_run();
}

TEST_F(WaitingFibersTest, WakesAll) {
  for (const int number : {2, 0, 1}) arrive(number);
  waiting_.wake_all();
  let_run();
  EXPECT_THAT(gone_, UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(asked(), IsEmpty());
  EXPECT_FALSE(scheduler_.any_waiting());
}

TEST_F(WaitingFibersTest, MayWaitAgain) {
  arrive(5);
  waiting_.wake_all();
  waiting_.wake_all();  // before it has run: that is one turn
  let_run();
  arrive(5);
  EXPECT_THAT(gone_, ElementsAre(5)) << "the second wait is not over with the first";
  waiting_.wake_all();
  let_run();
  EXPECT_THAT(gone_, ElementsAre(5, 5));
}

TEST_F(WaitingFibersTest, ForgetsWhoWasNotAllowedToWait) {
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { waiting_.wait(1, kTurn); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("a fiber cannot wait for its turn"));
  EXPECT_THAT(asked(), IsEmpty());
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { waiting_.wake_all(); }));
}

}  // namespace
}  // namespace smp::server
