// Modules by number: in the order they come, and their numbers stay taken.
#include "server/modules/module_table.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "module/routed_models.h"
#include "smp/nn/normalization.h"
#include "support/refusal.h"

namespace smp::server {
namespace {

template <class Holder>
RoutedBase* placed(Holder& module, const char* path) {
  auto* routed = dynamic_cast<RoutedBase*>(module.get());
  routed->smp_place = {-1, PpRank(0), path};
  return routed;
}

TEST(ModuleTable, NumbersModulesOfAllModelsInTheOrderTheyCome) {
  ModuleTable table;
  smp::test::Scale first, second, third;
  table.attach_model({placed(first, ""), placed(second, "encoder")});
  table.attach_model({placed(third, "encoder")});
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(third->smp_place.index, 2);
  for (auto* module : {&first, &second, &third}) {
    auto* routed = dynamic_cast<RoutedBase*>(module->get());
    EXPECT_EQ(&table.module(ModuleId{routed->smp_place.index}), routed);
  }
  EXPECT_STREQ(table.path(ModuleId{1}), "encoder");
  EXPECT_STREQ(table.path(kBody), "<body>");
}

TEST(ModuleTable, RandomKeysTellModelsAndPathsApart) {
  ModuleTable table, other;
  smp::test::Scale first, second, third, copy;
  table.attach_model({placed(first, "a"), placed(second, "b")});
  table.attach_model({placed(third, "a")});
  other.attach_model({placed(copy, "a")});
  EXPECT_NE(table.at(ModuleId{0}).random_key, table.at(ModuleId{1}).random_key);
  EXPECT_NE(table.at(ModuleId{0}).random_key, table.at(ModuleId{2}).random_key);
  EXPECT_EQ(table.at(ModuleId{0}).random_key, other.at(ModuleId{0}).random_key)
      << "all ranks have the same";
}

TEST(ModuleTable, KnowsWhoDrawsRandomNumbersAndWhoKeepsStatistics) {
  ModuleTable table;
  smp::test::Scale scale;
  smp::nn::Linear linear(2, 2);
  smp::nn::BatchNorm1d norm(2);
  table.attach_model({placed(scale, "scale"), placed(linear, "linear"), placed(norm, "norm")});
  EXPECT_TRUE(table.at(ModuleId{0}).draws_random) << "it may";
  EXPECT_FALSE(table.at(ModuleId{1}).draws_random);
  EXPECT_TRUE(table.at(ModuleId{0}).statistics.layers().empty());
  EXPECT_TRUE(table.at(ModuleId{1}).statistics.layers().empty());
  ASSERT_EQ(table.at(ModuleId{2}).statistics.layers().size(), 1u);
  EXPECT_EQ(table.at(ModuleId{2}).statistics.layers()[0], &norm->smp_module());
}

TEST(ModuleTable, KnowsTheLayersOfABodyAsLongAsItsModelLives) {
  ModuleTable table;
  torch::nn::Sequential first(torch::nn::BatchNorm1d(2)), second(torch::nn::BatchNorm1d(3));
  table.attach_body(*first);
  table.attach_body(*second);
  EXPECT_EQ(table.statistics_of_body().layers().size(), 2u);
  table.detach_body(*first);
  ASSERT_EQ(table.statistics_of_body().layers().size(), 1u);
  EXPECT_EQ(table.statistics_of_body().layers()[0], second->ptr(0).get());
}

TEST(ModuleTable, AModelThatIsGoneKeepsItsNumbersAndPaths) {
  ModuleTable table;
  smp::test::Scale first, second, third;
  const std::vector<RoutedBase*> model{placed(first, "first")};
  table.attach_model(model);
  const char* path = table.path(ModuleId{0});
  table.attach_model({placed(second, "second")});
  table.detach_model(model);
  table.attach_model({placed(third, "third")});
  EXPECT_EQ(third->smp_place.index, 2);
  EXPECT_STREQ(path, "first");
  EXPECT_EQ(table.path(ModuleId{0}), path);
  EXPECT_EQ(table.at(ModuleId{0}).module, nullptr);
  EXPECT_EQ(&table.module(ModuleId{1}), dynamic_cast<RoutedBase*>(second.get()));
  EXPECT_NE(refusal<UsageError>([&] {
              static_cast<void>(table.module(ModuleId{0}));
            }).find("has ended on this rank"),
            std::string::npos);
}

/// Nothing of theirs is kept alive.
TEST(ModuleTable, AModelThatIsGoneTakesItsBuffersAlong) {
  ModuleTable table;
  smp::test::Scale module;
  const auto buffer = module->register_buffer("mask", at::ones({3}));
  const std::vector<RoutedBase*> model{placed(module, "module")};
  table.attach_model(model);
  ASSERT_GT(buffer.use_count(), 2u) << "its buffers are watched";
  table.detach_model(model);
  EXPECT_EQ(buffer.use_count(), 2u) << "the module's, and the test's";
}

// ---- microbatches in order ---------------------------------------------------------------------

class ModuleTableOrder : public testing::Test {
 protected:
  ModuleTableOrder() { table_.attach_model({placed(first_, "first"), placed(second_, "second")}); }
  const ModuleTable::Entry& first() const { return table_.at(ModuleId{0}); }

  smp::test::Scale first_, second_;
  ModuleTable table_;
};

TEST_F(ModuleTableOrder, IsNoNewsWhereThePlanSaysIt) {
  smp::test::Scale ordered;
  EXPECT_FALSE(table_.any_in_order());
  table_.attach_model({placed(ordered, "ordered")}, {KeptState::kOrdered});
  EXPECT_TRUE(table_.any_in_order());
  EXPECT_TRUE(table_.at(ModuleId{2}).in_order);
  EXPECT_FALSE(first().in_order);
  table_.note_order(table_.at(ModuleId{2}));
  EXPECT_FALSE(table_.has_news_of_order());
}

TEST_F(ModuleTableOrder, IsKeptAtOnceAndNewsUntilAllKnow) {
  table_.note_order(first());
  EXPECT_TRUE(first().in_order);
  EXPECT_FALSE(table_.at(ModuleId{1}).in_order);
  EXPECT_TRUE(table_.any_in_order());
  EXPECT_TRUE(table_.has_news_of_order());
  table_.all_know_of_order();
  EXPECT_FALSE(table_.has_news_of_order());
  table_.note_order(first());
  EXPECT_FALSE(table_.has_news_of_order()) << "it is known";
}

/// Nobody would tell its microbatches that they have their turn.
TEST_F(ModuleTableOrder, IsKeptLaterWhereStepsMayBeReplayed) {
  table_.may_be_replayed(true);
  for (int step = 0; step < 2; ++step) table_.note_order(first());
  EXPECT_FALSE(first().in_order);
  EXPECT_FALSE(table_.any_in_order());
  EXPECT_TRUE(table_.has_news_of_order());
  table_.all_know_of_order();
  EXPECT_TRUE(first().in_order);
  EXPECT_TRUE(table_.any_in_order());
  EXPECT_FALSE(table_.has_news_of_order());
}

TEST_F(ModuleTableOrder, IsKeptAsSoonAsNoStepsAreReplayedAnyMore) {
  table_.may_be_replayed(true);
  table_.note_order(first());
  table_.may_be_replayed(false);
  EXPECT_TRUE(first().in_order);
  EXPECT_TRUE(table_.any_in_order());
  EXPECT_TRUE(table_.has_news_of_order()) << "nobody else knows yet";
}

TEST_F(ModuleTableOrder, OfAnotherRankIsNoneOfTheModulesHere) {
  table_.note_order_elsewhere();
  EXPECT_TRUE(table_.any_in_order());
  EXPECT_FALSE(table_.has_news_of_order());
  EXPECT_FALSE(first().in_order);
}

// ---- numbers that nobody has
// ---------------------------------------------------------------------

TEST(ModuleTable, ANumberThatNobodyHasIsAnError) {
  ModuleTable table;
  for (const int number : {0, 7, -1}) {
    EXPECT_THROW(static_cast<void>(table.at(ModuleId{number})), InternalError);
    EXPECT_THROW(static_cast<void>(table.module(ModuleId{number})), InternalError);
    EXPECT_STREQ(table.path(ModuleId{number}), "<body>");
  }
}

}  // namespace
}  // namespace smp::server
