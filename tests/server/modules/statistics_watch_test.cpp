// What the watch says of layers that train, evaluate, or keep nothing.
#include "server/modules/statistics_watch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

namespace smp::server {
namespace {

TEST(StatisticsWatch, SeesWhatWasTrainedInTheStep) {
  torch::nn::BatchNorm1d norm(2), other(2);
  StatisticsWatch watch(StatisticsWatch::Layers{norm.get(), other.get()});
  EXPECT_FALSE(watch.written());
  norm(at::ones({3, 2}));
  EXPECT_TRUE(watch.written());
  watch.begin_step();
  EXPECT_FALSE(watch.written());
}

TEST(StatisticsWatch, OnlyALayerThatWasTrainedItselfIsReadAfterIt) {
  torch::nn::BatchNorm1d norm(2), frozen(2);
  frozen->eval();
  StatisticsWatch watch(StatisticsWatch::Layers{norm.get(), frozen.get()});
  norm(at::ones({3, 2}));
  frozen(at::ones({3, 2}));
  EXPECT_FALSE(watch.read_after_writing()) << "the layer that evaluates was not trained";
  norm->eval();
  EXPECT_TRUE(watch.read_after_writing());
  watch.begin_step();
  norm(at::ones({3, 2}));
  EXPECT_FALSE(watch.read_after_writing()) << "trained in an earlier step";
}

TEST(StatisticsWatch, SeesInstanceNormWhichCountsNoBatches) {
  torch::nn::InstanceNorm1d norm(torch::nn::InstanceNorm1dOptions(2).track_running_stats(true));
  StatisticsWatch watch(StatisticsWatch::Layers{norm.get()});
  norm(at::rand({2, 2, 5}));
  EXPECT_TRUE(watch.written());
}

TEST(StatisticsWatch, LayersWithoutStatisticsAreNeverWritten) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(2).track_running_stats(false));
  StatisticsWatch watch(StatisticsWatch::Layers{norm.get()});
  norm(at::ones({3, 2}));
  norm->eval();
  EXPECT_FALSE(watch.written());
  EXPECT_FALSE(watch.read_after_writing());
}

TEST(StatisticsWatch, ALayerOfTwoModelsStaysWhenOneEnds) {
  torch::nn::BatchNorm1d norm(2), other(2);
  StatisticsWatch watch(StatisticsWatch::Layers{norm.get(), other.get(), norm.get()});
  watch.remove(norm.get());
  EXPECT_EQ(watch.layers(), (StatisticsWatch::Layers{other.get(), norm.get()}));
  norm(at::ones({3, 2}));
  EXPECT_TRUE(watch.written());
  watch.remove(norm.get());
  watch.remove(norm.get());
  EXPECT_EQ(watch.layers(), StatisticsWatch::Layers{other.get()});
  EXPECT_FALSE(watch.written());
}

}  // namespace
}  // namespace smp::server
