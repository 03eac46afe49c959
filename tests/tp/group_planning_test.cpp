// What plans and the planner's trial say of models whose layers ranks share.
#include <gmock/gmock.h>
#include <torch/optim/adam.h>

#include <functional>
#include <string>

#include "base/log.h"
#include "support/refusal.h"
#include "tp/sliced_training.h"

namespace smp::tp {
namespace group_planning_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kTp = 2;

Config config_of(int pp) {
  Config config;
  config.tensor_parallel_degree = kTp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  return config;
}

/// Bytes that the plan counts, of a stage that holds the whole model.
struct Planned {
  std::int64_t gradients = 0, state = 0;
};

Planned planned(bool shard, int replicas, bool overlap = true) {
  Planned bytes;
  auto config = config_of(1);
  config.shard_optimizer_state = shard;
  config.overlapping_allreduce = overlap;
  run_local(kTp * replicas,
            [&] {
              SlicedBag net;
              DistributedModel model(net);
              const DistributedOptimizer optimizer(model, torch::optim::Adam(model.parameters()));
              model.place();
              const auto& stage = model.plan().summary()->stages.at(0);
              if (rank() == 0) bytes = {stage.gradients, stage.optimizer};
            },
            config, {1});
  return bytes;
}

/// Slices are dealt among their own replicas, all else among all ranks.
TEST(GroupPlanning, CountsTheStateThatARankKeeps) {
  const auto of = [](std::int64_t elements) { return 2 * 8 * elements; };  // two moments, float64
  const int embed = 13 * 8 / kTp, first = 8 * 8 / kTp, second = 12 * 4 / kTp;
  const int slices = embed + first + second, biases = 8;
  const int whole = 8 * 12 + 12;
  EXPECT_EQ(planned(false, 2).state, of(slices + biases + whole));
  EXPECT_EQ(planned(true, 1).state, of(slices + 8 * 12))
      << "the weight on one, biases on the other";
  EXPECT_EQ(planned(true, 2).state, of(std::max(embed, first + second) + 8 * 12));
}

/// Beside the gradients, until the end of the step.
TEST(GroupPlanning, CountsTheSumsThatARankKeeps) {
  const int embed = 13 * 8 / kTp, first = 8 * 8 / kTp, second = 12 * 4 / kTp;
  const int all = embed + first + second + 8 + 8 * 12 + 12;
  EXPECT_EQ(planned(false, 2).gradients, 8 * 2 * all);
  EXPECT_EQ(planned(true, 2).gradients, 8 * (all + std::max(embed, first + second) + 8 * 12));
  EXPECT_EQ(planned(true, 2, false).gradients, 8 * all) << "at the end";
}

/// The warnings of a step whose loss has a term of `weight_of` the model.
std::string warnings_of(bool prescaled,
                        const std::function<at::Tensor(const SlicedBag&)>& weight_of) {
  const base::LogCapture log;
  auto config = config_of(2);
  config.prescaled_batch = prescaled;
  run_local(2 * kTp,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                const auto penalty = weight_of(net).square().sum();
                const auto loss = torch::mse_loss(model(tokens), targets) + 1e-3 * penalty;
                model.backward(loss);
                return loss;
              });
              const auto [tokens, targets] = samples(0, prescaled ? rdp_rank() : dp_rank());
              train(tokens, targets);
            },
            config, {1});
  return log.text();
}

TEST(GroupPlanning, WarnsOfSlicesThatAreReadOutsideOfTheirModule) {
  const auto slice = [](const SlicedBag& net) { return net->first->weight; };
  EXPECT_THAT(
      warnings_of(false, slice),
      AllOf(HasSubstr("parameter 'first.weight' is read by the model"),
            HasSubstr("counts 1/2 of what it does in one process"), HasSubstr("smp::tp_size()")));
  EXPECT_THAT(warnings_of(true, slice), Not(HasSubstr("is read by")));
  EXPECT_THAT(warnings_of(false, [](const SlicedBag& net) { return net->whole->weight; }),
              Not(HasSubstr("is read by")));
}

}  // namespace group_planning_test
}  // namespace smp::tp
