// Which layers keep running statistics, and that they are read and set in place.
#include "module/running_statistics.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>

#include "smp/nn/linear.h"
#include "smp/nn/normalization.h"

namespace smp::module {
namespace {

TEST(RunningStatistics, AreThoseOfBatchNorm) {
  nn::BatchNorm2d layer(nn::BatchNorm2dOptions(3).momentum(0.25));
  auto statistics = as_running_statistics(*layer);
  ASSERT_TRUE(statistics);
  EXPECT_TRUE(statistics->running_mean->is_same(layer->running_mean));
  EXPECT_TRUE(statistics->running_var->is_same(layer->running_var));
  EXPECT_TRUE(statistics->num_batches_tracked->is_same(layer->num_batches_tracked));
  EXPECT_EQ(statistics->momentum(), 0.25);
  EXPECT_TRUE(statistics->counts_batches);
  layer->options.momentum(std::nullopt);
  EXPECT_FALSE(statistics->momentum().has_value());
}

TEST(RunningStatistics, AreThoseOfInstanceNormThatTracksThem) {
  nn::InstanceNorm1d layer(nn::InstanceNorm1dOptions(3).track_running_stats(true));
  auto statistics = as_running_statistics(*layer);
  ASSERT_TRUE(statistics);
  EXPECT_EQ(statistics->momentum(), 0.1);
  EXPECT_FALSE(statistics->counts_batches);
}

TEST(RunningStatistics, MayBeKeptByNormalisationsOnly) {
  EXPECT_TRUE(is_normalisation(*nn::BatchNorm1d(3)));
  EXPECT_TRUE(is_normalisation(*nn::InstanceNorm3d(3)));
  EXPECT_FALSE(is_normalisation(*nn::LayerNorm(nn::LayerNormOptions({3}))));
  EXPECT_FALSE(is_normalisation(*nn::Linear(3, 3)));
}

TEST(RunningStatistics, OfLayersThatRunWithAModuleAreFoundDownToWhatRunsApart) {
  torch::nn::ModuleList inner(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  torch::nn::ModuleList apart(torch::nn::BatchNorm1d(2));
  torch::nn::ModuleList outer(inner, torch::nn::InstanceNorm1d(2), apart);
  const auto found =
      normalisations_of(*outer, [&](torch::nn::Module& module) { return &module == apart.get(); });
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], inner->ptr(1).get());
  EXPECT_EQ(found[1], outer->ptr(1).get());
}

TEST(RunningStatistics, AreNothingElsewhere) {
  EXPECT_FALSE(as_running_statistics(*nn::InstanceNorm1d(3)));
  EXPECT_FALSE(as_running_statistics(
      *nn::BatchNorm1d(nn::BatchNorm1dOptions(3).track_running_stats(false))));
  EXPECT_FALSE(as_running_statistics(*nn::LayerNorm(nn::LayerNormOptions({3}))));
  EXPECT_FALSE(as_running_statistics(*nn::Linear(3, 3)));
}

}  // namespace
}  // namespace smp::module
