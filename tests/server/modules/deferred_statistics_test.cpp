// Running statistics are blended in the order of one process, whatever the order of execution.
#include "server/modules/deferred_statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

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
    DeferredStatistics::Execution execution(statistics_, {layer.get()}, call.microbatch);
    layer->forward(call.batch);
    execution.collect(call.order);
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

/// One microbatch is put aside in the midst of the layer's module while the other passes it.
TEST_F(DeferredStatisticsTest, AreThoseOfOneProcessWhenMicrobatchesInterleave) {
  for (const auto momentum : {std::optional<double>(0.3), std::optional<double>()}) {
    at::manual_seed(5);
    const auto x = at::randn({4, 8, 3});
    auto plain = make_layer(momentum);
    for (int i = 0; i < 4; ++i) plain->forward(x[i]);
    auto layer = make_layer(momentum);
    {
      DeferredStatistics::Execution first(statistics_, {layer.get()}, 0);
      layer->forward(x[0]);
      first.on_switch(false);
      EXPECT_EQ(layer->running_mean.abs().sum().item<float>(), 0);
      {
        DeferredStatistics::Execution second(statistics_, {layer.get()}, 1);
        layer->forward(x[2]);
        layer->forward(x[3]);
        second.collect(OrderKey());
        second.on_switch(false);
        first.on_switch(true);
        first.on_switch(true);
        layer->forward(x[1]);
        first.collect(OrderKey());
      }
    }
    EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 0);
    statistics_.commit();
    expect_same(layer, plain);
  }
}

/// A layer that is asked for its statistics, or evaluates, in the midst of a step.
TEST_F(DeferredStatisticsTest, MayBeReadMeanwhile) {
  auto layer = make_layer(0.5);
  layer->running_mean.fill_(7);
  DeferredStatistics::Execution execution(statistics_, {layer.get()}, 0);
  EXPECT_EQ(layer->running_mean[0].item<float>(), 7);
  layer->eval();
  EXPECT_LT(layer->forward(at::full({2, 3}, 7.0f)).abs().max().item<float>(), 1e-5);
  execution.collect(OrderKey());
  statistics_.commit();
  EXPECT_EQ(layer->running_mean[0].item<float>(), 7);
}

TEST_F(DeferredStatisticsTest, OfInstanceNormCountNoBatches) {
  at::manual_seed(5);
  const auto x = at::randn({3, 2, 3, 8});
  const auto options = torch::nn::InstanceNorm1dOptions(3).track_running_stats(true);
  torch::nn::InstanceNorm1d plain(options), layer(options);
  for (int i = 0; i < 3; ++i) plain->forward(x[i]);
  {
    DeferredStatistics::Execution execution(statistics_, {layer.get()}, 0);
    layer->forward(x[0]);
    execution.collect(OrderKey().child(0));
    layer->forward(x[1]);
    layer->forward(x[2]);
    execution.collect(OrderKey().child(1));
  }
  statistics_.commit();
  EXPECT_TRUE(at::allclose(layer->running_mean, plain->running_mean));
  EXPECT_TRUE(at::allclose(layer->running_var, plain->running_var));
  EXPECT_TRUE(at::equal(layer->num_batches_tracked, plain->num_batches_tracked));
}

TEST_F(DeferredStatisticsTest, AreKeptOnlyByLayersThatTrain) {
  auto layer = make_layer(0.1);
  EXPECT_TRUE(DeferredStatistics::of(*layer).has_value());
  layer->eval();
  EXPECT_FALSE(DeferredStatistics::of(*layer).has_value());
}

}  // namespace
}  // namespace smp::server
