// What makes another plan has another key in the plan cache, and what does not has the same.
#include "api/planning/plan_key.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <set>
#include <typeinfo>

#include "smp/smp.h"

namespace smp {
namespace plan_key_test {

class PlanKey : public testing::Test {
 protected:
  PlanKey() : net_(nn::Linear(4, 4)), model_(describe_model(*net_)) {
    preview_.arguments_key = [](int microbatch) { return std::uint64_t{7} + microbatch; };
    machine_.stages = 2;
  }
  std::uint64_t key() const { return key_of(model_); }
  std::uint64_t key_of(const ModelDescription& model) const {
    return plan_key({model, pins_, 2, preview_, config_, machine_});
  }

  nn::Linear net_;
  ModelDescription model_;
  std::vector<partitioning::Pin> pins_;
  StepPreview preview_;
  Config config_;
  simulate::Machine machine_;
};

TEST_F(PlanKey, HoldsWhatMessagesWereMeasuredToCostToHalfAnOctave) {
  config_.trace_repeats = 3;
  const auto before = key();
  for (double simulate::Machine::*cost : {&simulate::Machine::latency, &simulate::Machine::handling,
                                          &simulate::Machine::bytes_per_second}) {
    const double old = machine_.*cost;
    machine_.*cost = 1.01 * old;
    const auto little = key();
    machine_.*cost = 0.99 * old;
    EXPECT_TRUE(little == before || key() == before) << "at most one side of a border";
    machine_.*cost = 2 * old;
    EXPECT_NE(key(), before);
    machine_.*cost = old;
  }
  EXPECT_EQ(key(), before);
}

TEST_F(PlanKey, HoldsWhatMessagesAreSaidToCost) {
  machine_.places = {{0, 0, 0}, {1, 0, 0}};
  const auto before = key();
  machine_.network.bytes_per_second *= 1.001;
  EXPECT_NE(key(), before);
}

TEST_F(PlanKey, HoldsTheLinksOfPairs) {
  const auto before = key();
  machine_.pairs = {{0, 1e9}, {1e-6, 2e9}, {1e-6, 2e9}, {0, 1e9}};
  const auto linked = key();
  EXPECT_NE(linked, before);
  machine_.pairs[1].bytes_per_second *= 1.001;
  EXPECT_NE(key(), linked);
}

TEST_F(PlanKey, HoldsReplicasAndHowTheySumGradients) {
  const auto alone = key();
  machine_.replicas = {2, {1e-5, 4e9}, 1 << 20};
  std::set<std::uint64_t> keys{alone, key()};
  machine_.replicas.count = 3;
  keys.insert(key());
  machine_.replicas.bucket_bytes = 0;
  keys.insert(key());
  machine_.replicas.all_get_sums = false;
  keys.insert(key());
  machine_.replicas.link.bytes_per_second = 1e9;
  keys.insert(key());
  EXPECT_EQ(keys.size(), 6u);
}

TEST_F(PlanKey, HoldsTheBodyOfTheStep) {
  const auto none = key();
  const auto first = [] {};
  const auto second = [] {};
  preview_.body = &typeid(first);
  const auto of_first = key();
  preview_.body = &typeid(second);
  EXPECT_NE(of_first, none);
  EXPECT_NE(key(), of_first);
}

TEST_F(PlanKey, HoldsWhetherProductsMayBeLessPrecise) {
  const auto before = key();
  at::globalContext().setAllowTF32CuBLAS(true);
  EXPECT_NE(key(), before);
  at::globalContext().setAllowTF32CuBLAS(false);
  EXPECT_EQ(key(), before);
}

TEST_F(PlanKey, HoldsMemoryAndWhetherItIsAnOrder) {
  const auto before = key();
  machine_.memory = {1000, 1000};
  const auto offered = key();
  EXPECT_NE(offered, before);
  config_.stage_memory = {1};
  EXPECT_NE(key(), offered);
}

TEST_F(PlanKey, HoldsOnWhatStagesComputeAndWhereTheyAre) {
  std::set<std::uint64_t> keys{key()};
  const auto is_new = [&] { return keys.insert(key()).second; };
  machine_.devices = {"h100", "h100"};
  EXPECT_TRUE(is_new());
  machine_.devices = {"h100", "cpu"};
  EXPECT_TRUE(is_new());
  machine_.network.latency = 1;
  EXPECT_FALSE(is_new()) << "nothing crosses it";
  machine_.network.latency = 30e-6;
  machine_.places = {{0, 0, 0}, {1, 0, 0}};
  EXPECT_TRUE(is_new());
  machine_.network.bytes_per_second *= 4;
  EXPECT_TRUE(is_new());
  machine_.places[1] = {0, 1, 0};
  EXPECT_TRUE(is_new());
}

TEST_F(PlanKey, HoldsTheArgumentsOfAllTracedMicrobatches) {
  const auto before = key();
  preview_.traced = 2;
  const auto two = key();
  EXPECT_NE(two, before);
  preview_.arguments_key = [](int microbatch) { return std::uint64_t{7} + 2 * microbatch; };
  EXPECT_NE(key(), two);
}

TEST_F(PlanKey, HoldsTheTypesThatOperatorsRunIn) {
  const auto before = key();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto mixed = key();
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const auto half = key();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(std::set({before, mixed, half}).size(), 3u);
  EXPECT_EQ(key(), before);
}

TEST_F(PlanKey, HoldsHowTheModelIsTried) {
  const auto before = key();
  config_.device = "cuda";
  EXPECT_NE(key(), before) << "on shapes there";
  config_.device = "cpu";
  model_.tree.parameters.at(0).state_shares = 2;
  EXPECT_NE(key(), before) << "what the optimizer keeps on a rank";
  model_.tree.parameters.at(0).state_shares = 1;
  config_.prescaled_batch = true;
  EXPECT_NE(key(), before) << "what slices compute";
  config_.prescaled_batch = false;
  config_.shard_optimizer_state = true;
  EXPECT_NE(key(), before) << "what the optimizer keeps";
  config_.shard_optimizer_state = false;
  EXPECT_EQ(key(), before);
}

struct Positions : torch::nn::Module {
  explicit Positions(int count) { register_buffer("positions", torch::arange(count)); }
};
struct OtherPositions : Positions {
  using Positions::Positions;
};

TEST_F(PlanKey, HoldsBuffersAndClassesOfModules) {
  Positions few(8), as_few(8), more(16);
  OtherPositions other(8);
  EXPECT_EQ(key_of(describe_model(few)), key_of(describe_model(as_few)));
  EXPECT_NE(key_of(describe_model(few)), key_of(describe_model(more)));
  EXPECT_NE(key_of(describe_model(few)), key_of(describe_model(other)));
}

TEST_F(PlanKey, HoldsWhichWeightsAreTrained) {
  const auto before = key();
  net_->bias.requires_grad_(false);
  EXPECT_NE(key(), before);
}

struct OnDevice : torch::nn::Module {
  explicit OnDevice(torch::Device device) {
    register_parameter("weight", torch::empty({4, 4}, device));
  }
};

TEST_F(PlanKey, HoldsTheDeviceOfTheWeights) {
  OnDevice here(torch::kCPU), also_here(torch::kCPU), elsewhere(torch::kMeta);
  EXPECT_EQ(key_of(describe_model(here)), key_of(describe_model(also_here)));
  EXPECT_NE(key_of(describe_model(here)), key_of(describe_model(elsewhere)));
}

}  // namespace plan_key_test
}  // namespace smp
