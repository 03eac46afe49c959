// Who has which tensor while a body runs.
#include "trial/graph/live_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace smp::partitioning {
namespace {

constexpr std::int64_t kBytes = 6 * sizeof(float);

// A model, call 0, that calls two of its modules.
class LiveLogTest : public testing::Test {
 protected:
  LiveLogTest() : traces_(1) {
    for (const int caller : {-1, 0, 0}) {
      simulate::TracedCall call;
      call.caller = caller;
      traces_[0].calls.push_back(call);
    }
    log_.begin({0, 0});
  }
  const simulate::TracedCall& call(int number) const { return traces_[0].calls.at(number); }

  LiveLog log_;
  std::vector<simulate::Trace> traces_;
};

at::Tensor input() { return at::ones({6}).requires_grad_(); }

TEST_F(LiveLogTest, GivesNodesOfTheGraphToTheCallThatMadeThem) {
  const auto x = input();
  log_.begin({0, 1});
  const auto y = x.exp();  // keeps its result
  log_.end({0, 0});
  const auto z = y.tanh().exp();
  log_.keep_graph({z});
  log_.account({x.storage().unsafeGetStorageImpl()}, traces_);
  EXPECT_EQ(call(1).after.activation_bytes, kBytes);
  EXPECT_EQ(call(0).after.activation_bytes, 2 * kBytes);
}

TEST_F(LiveLogTest, LendsArgumentsThatTheCallerDoesNotKeep) {
  const auto x = input();
  const auto kept = x.exp(), lent = x + 1;
  log_.begin({0, 1});
  log_.note_arguments({kept, lent, lent.view({2, 3})});
  const auto y = kept * lent;
  log_.end({0, 0});
  log_.keep_graph({y});
  log_.account({}, traces_);
  EXPECT_EQ(call(1).caller_live_bytes, kBytes) << "each storage once";
}

TEST_F(LiveLogTest, LendsWhatEarlierCallsReturnedWhileItLives) {
  auto lives = at::ones({6}), dies = at::ones({6});
  log_.begin({0, 1});
  log_.end({0, 0});
  log_.note_results({lives, dies});
  dies.reset();
  log_.begin({0, 2});
  log_.note_arguments({});
  log_.end({0, 0});
  log_.account({}, traces_);
  EXPECT_EQ(call(1).caller_live_bytes, 0);
  EXPECT_EQ(call(2).caller_live_bytes, kBytes);
}

TEST_F(LiveLogTest, CountsNoWeights) {
  const auto weight = input();
  log_.begin({0, 1});
  log_.note_arguments({weight});
  const auto y = input() * weight;
  log_.end({0, 0});
  log_.keep_graph({y});
  log_.account({weight.storage().unsafeGetStorageImpl()}, traces_);
  EXPECT_EQ(call(1).caller_live_bytes, 0);
  EXPECT_EQ(call(1).after.activation_bytes, kBytes) << "the other factor";
}

/// Who reads the batch where the body runs holds nothing more; on another rank it would.
TEST_F(LiveLogTest, CountsNothingOfTheBatch) {
  const auto batch = at::ones({6});
  const auto weight = input();
  log_.note_batch({batch});
  log_.begin({0, 1});
  log_.note_arguments({batch});
  const auto y = batch * weight;
  log_.end({0, 0});
  log_.keep_graph({y});
  log_.account({weight.storage().unsafeGetStorageImpl()}, traces_);
  EXPECT_EQ(call(1).caller_live_bytes, 0);
  EXPECT_EQ(call(1).after.activation_bytes, 0);
  ASSERT_EQ(traces_[0].shared.size(), 1u);
  EXPECT_EQ(traces_[0].shared[0].bytes, kBytes);
  EXPECT_EQ(traces_[0].shared[0].keepers,
            (std::vector<simulate::IntervalId>{{0, true}, {1, false}}));
}

}  // namespace
}  // namespace smp::partitioning
