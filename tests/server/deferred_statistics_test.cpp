// Running statistics are blended in the order of one process, whatever the order of execution.
#include "server/deferred_statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace smp::server {
namespace {

struct NormCall {
  int microbatch;
  OrderKey order;
  at::Tensor batch;
};

class DeferredStatisticsTest : public testing::Test {
 protected:
  static torch::nn::BatchNorm1d make_layer(std::optional<double> momentum) {
    return torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).momentum(momentum));
  }
  /// Two microbatches: body ─► 3 ─► 3.0, then 4; sorted as one process calls the layer.
  static std::vector<NormCall> program() {
    std::vector<NormCall> calls;
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const OrderKey caller = OrderKey().child(3);
      for (const auto& order : {caller, caller.child(0), OrderKey().child(4)}) {
        calls.push_back({microbatch, order, at::randn({8, 3}) * (1 + 10 * microbatch)});
      }
    }
    return calls;
  }
  static void expect_same(torch::nn::BatchNorm1d& left, torch::nn::BatchNorm1d& right) {
    EXPECT_TRUE(at::allclose(left->running_mean, right->running_mean));
    EXPECT_TRUE(at::allclose(left->running_var, right->running_var));
    EXPECT_TRUE(at::equal(left->num_batches_tracked, right->num_batches_tracked));
  }
  void run(torch::nn::BatchNorm1d& layer, const NormCall& call) {
    const DeferredStatistics::Execution execution(
        statistics_, DeferredStatistics::of(*layer).value(), call.microbatch, call.order);
    layer->forward(call.batch);
  }

  DeferredStatistics statistics_;
};

TEST_F(DeferredStatisticsTest, AreThoseOfOneProcessInAnyOrderOfExecution) {
  for (const auto momentum : {std::optional<double>(0.3), std::optional<double>()}) {
    at::manual_seed(5);
    const auto calls = program();
    auto plain = make_layer(momentum);
    for (const auto& call : calls) plain->forward(call.batch);
    std::vector<std::size_t> arrival(calls.size());
    std::iota(arrival.begin(), arrival.end(), 0);
    auto bits = at::Tensor();
    for (int trial = 0; trial < 40; ++trial) {
      std::shuffle(arrival.begin(), arrival.end(), std::mt19937(trial));
      auto layer = make_layer(momentum);
      for (const auto index : arrival) run(layer, calls[index]);
      EXPECT_EQ(layer->running_mean.abs().sum().item<float>(), 0);  // not before commit()
      statistics_.commit();
      expect_same(layer, plain);
      if (!bits.defined()) bits = layer->running_var;
      EXPECT_TRUE(at::equal(layer->running_var, bits));  // to the bit
    }
  }
}

TEST_F(DeferredStatisticsTest, OfAFailedStepAreForgotten) {
  auto layer = make_layer(0.1);
  auto untouched = make_layer(0.1);
  run(layer, program().front());
  statistics_.drop();
  statistics_.commit();
  expect_same(layer, untouched);
}

TEST_F(DeferredStatisticsTest, OfAnExecutionThatThrowsAreForgotten) {
  auto layer = make_layer(0.1);
  auto untouched = make_layer(0.1);
  EXPECT_ANY_THROW(run(layer, {0, OrderKey(), at::zeros({8, 4})}));
  statistics_.commit();
  expect_same(layer, untouched);
  EXPECT_EQ(layer->options.momentum(), 0.1);
}

TEST_F(DeferredStatisticsTest, AreKeptOnlyByLayersThatTrain) {
  auto layer = make_layer(0.1);
  EXPECT_TRUE(DeferredStatistics::of(*layer).has_value());
  layer->eval();
  EXPECT_FALSE(DeferredStatistics::of(*layer).has_value());
}

}  // namespace
}  // namespace smp::server
