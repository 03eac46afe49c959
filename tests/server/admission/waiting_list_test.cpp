// What waits: in the order it came, each with its reason; fibers are woken when it is their turn,
// and forgotten however their wait ends.
#include "server/admission/waiting_list.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "server/admission/admission_testing.h"
#include "server/backward/dead_frames.h"
#include "server/hand_clock.h"
#include "support/refusal.h"

namespace smp::server {
namespace waiting_list_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// ---- the list ----------------------------------------------------------------------------------

TEST(WaitingList, TellsWhoWaitsForWhomSinceWhen) {
  HandClock clock;
  WaitingList list(clock);
  const auto first = list.add(Reason::kHold, 4, kBody);
  clock.time += 5;
  list.add(Reason::kPromisedGradient, 2, ModuleId{7}, BackwardTask{PpRank(3), {}});
  list.remove(first);
  ASSERT_EQ(list.size(), 1u);
  const auto& waiting = *list.begin();
  EXPECT_EQ(waiting.reason, Reason::kPromisedGradient);
  EXPECT_EQ(waiting.microbatch, 2);
  EXPECT_EQ(waiting.module, ModuleId{7});
  EXPECT_EQ(waiting.since, clock.time);
  ASSERT_NE(waiting.asker(), nullptr);
  EXPECT_EQ(*waiting.asker(), PpRank(3));
  list.add(Reason::kBackwardGate, 1, kBody);
  EXPECT_EQ(std::next(list.begin())->asker(), nullptr) << "a fiber of this rank";
}

TEST(WaitingList, WhatIsUsedAgainKeepsNothing) {
  HandClock clock;
  WaitingList list(clock);
  const auto tensor = at::ones({1});
  ForwardTask task{PpRank(0), {}, {}};
  task.request.arguments.tensors = {tensor};
  const auto entry = list.add(Reason::kPromisedInput, 0, ModuleId{1}, std::move(task));
  entry->missing = 2;
  entry->failed = true;
  EXPECT_EQ(tensor.use_count(), 2u);
  list.remove(entry);
  EXPECT_EQ(tensor.use_count(), 1u);
  const auto again = list.add(Reason::kRow, 0, ModuleId{1});
  EXPECT_EQ(&*again, &*entry) << "its memory is used again";
  EXPECT_EQ(again->missing, 0u);
  EXPECT_FALSE(again->failed);
  EXPECT_EQ(again->turn, nullptr);
}

TEST(WaitingList, EveryReasonHasAText) {
  for (int reason = 0; reason <= static_cast<int>(Reason::kHold); ++reason) {
    EXPECT_STRNE(text_of(static_cast<Reason>(reason)), "");
  }
}

// ---- fibers ------------------------------------------------------------------------------------

/// One whose gate a test opens and closes.
class Gate final : public schedule::Schedule {
 public:
  const char* name() const noexcept override { return "gate"; }
  bool may_start(const schedule::Progress&) const noexcept override { return true; }
  bool may_begin_backward(const schedule::Progress&) const noexcept override { return open; }
  std::int64_t priority(schedule::Phase, int, const schedule::Progress&) const noexcept override {
    return 0;
  }
  int most_alive(int, int microbatches) const noexcept override { return microbatches; }

  bool open = false;
};

class WaitingFibersTest : public test::AdmissionTest {
 protected:
  WaitingFibersTest() : AdmissionTest(std::make_unique<Gate>(), 6, 0) {
    while (admission_.next_body()) {
    }
  }
  /// Waits for the lower microbatches.
  void arrive(int microbatch) {
    spawn([this, microbatch] {
      admission_.pass_in_order(microbatch, "memory");
      gone_.push_back(microbatch);
    });
  }
  void open_gate(bool open) { static_cast<Gate&>(*schedule_).open = open; }

  std::vector<int> gone_;
};

TEST_F(WaitingFibersTest, WakesThoseWhoseTurnItIs) {
  for (const int microbatch : {3, 1, 2, 1}) arrive(microbatch);
  EXPECT_THAT(waiting(), ElementsAre(3, 1, 2, 1));
  admission_.forward_done(0);
  EXPECT_THAT(gone_, IsEmpty()) << "they are woken, they do not run yet";
  let_run();
  EXPECT_THAT(gone_, ElementsAre(1, 1));
  EXPECT_THAT(waiting(), UnorderedElementsAre(2, 3));
  admission_.open_all();
  let_run();
}

TEST_F(WaitingFibersTest, WakesAll) {
  for (const int microbatch : {2, 3, 1}) arrive(microbatch);
  admission_.open_all();
  let_run();
  EXPECT_THAT(gone_, UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(waiting(), IsEmpty());
  EXPECT_FALSE(scheduler_.any_waiting());
}

TEST_F(WaitingFibersTest, MayWaitAgain) {
  spawn([this] {
    admission_.pass_gate(5);
    gone_.push_back(5);
  });
  open_gate(true);
  admission_.body_forward_done(5);
  admission_.body_forward_done(5);  // before it has run: that is one turn
  open_gate(false);
  let_run();
  EXPECT_THAT(gone_, IsEmpty()) << "the second wait is not over with the first";
  EXPECT_THAT(waiting(), ElementsAre(5));
  open_gate(true);
  admission_.body_forward_done(5);
  let_run();
  EXPECT_THAT(gone_, ElementsAre(5));
}

/// A body at the gate, and a module of the same microbatch that keeps state.
TEST_F(WaitingFibersTest, WakesThoseThatWaitForIt) {
  arrive(1);
  spawn([this] {
    admission_.pass_gate(1);
    gone_.push_back(100);
  });
  EXPECT_THAT(reasons(), ElementsAre(Reason::kMicrobatchOrder, Reason::kBackwardGate));
  admission_.forward_done(0);
  let_run();
  EXPECT_THAT(gone_, ElementsAre(1));
  open_gate(true);
  admission_.body_forward_done(2);
  let_run();
  EXPECT_THAT(gone_, ElementsAre(1, 100));
}

TEST_F(WaitingFibersTest, ForgetsWhoWasNotAllowedToWait) {
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { admission_.pass_in_order(1, "memory"); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("a fiber cannot wait for lower microbatches"));
  EXPECT_THAT(waiting(), IsEmpty());
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { admission_.open_all(); }));
}

}  // namespace waiting_list_test
}  // namespace smp::server
