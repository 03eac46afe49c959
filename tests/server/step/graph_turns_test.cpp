// Passes over a common graph: one after the other, in the order of coming, also after exceptions.
#include "server/step/graph_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fiber/sim_clock.h"

namespace smp::server {
namespace {

using ::testing::ElementsAre;

constexpr fiber::WaitReason kTurn{"a turn", "", -1, -1};

class GraphTurnsTest : public ::testing::Test {
 protected:
  GraphTurnsTest() {
    clock_.random_choice = false;
    scheduler_.set_simulation(&clock_);
  }
  ~GraphTurnsTest() override { scheduler_.set_simulation(nullptr); }
  void spawn(std::function<void()> body) {
    ++running_;
    scheduler_.spawn(
        [this, body = std::move(body)] {
          body();
          if (--running_ == 0) ended_.signal();
        },
        {}, 1 << 20, 0);
  }
  void finish() {
    while (running_ > 0) ended_.wait({"the test", "", -1, -1});
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  fiber::SimClock clock_{1};
  fiber::Event ended_, go_on_;
  int running_ = 0;
};

TEST_F(GraphTurnsTest, OnePassAtATime) {
  const auto turns = std::make_shared<GraphTurns>();
  std::vector<int> order;
  for (int pass = 0; pass < 3; ++pass) {
    spawn([&, pass] {
      try {
        const GraphTurns::Turn turn(turns, kTurn);
        order.push_back(pass);
        if (pass == 0) go_on_.wait({"the test", "", -1, -1});
        order.push_back(pass);
        throw std::runtime_error("as hooks do");
      } catch (const std::runtime_error&) {
      }
    });
  }
  spawn([&] {
    EXPECT_THAT(order, ElementsAre(0));
    go_on_.signal();
  });
  finish();
  EXPECT_THAT(order, ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST_F(GraphTurnsTest, NobodyWaitsForAGraphOfOnesOwn) {
  const GraphTurns::Turn first(nullptr, kTurn), second(nullptr, kTurn);
  const GraphTurns::Turn third(std::make_shared<GraphTurns>(), kTurn);
}

}  // namespace
}  // namespace smp::server
