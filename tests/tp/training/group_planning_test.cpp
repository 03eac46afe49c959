// What plans and the planner's trial say of models whose layers ranks share.
#include <gmock/gmock.h>
#include <torch/optim/adam.h>

#include <functional>
#include <string>

#include "api/planning/job_machine.h"
#include "api/rank/rank.h"
#include "base/log.h"
#include "support/refusal.h"
#include "tp/group/exchange.h"
#include "tp/training/sliced_training.h"

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

/// As of a tied head: what LibTorch says is of shapes alone.
TEST(GroupPlanning, SaysWithATrialThatFailedThatWeightsAreSlices) {
  const base::LogCapture log;
  EXPECT_ANY_THROW(run_local(
      2 * kTp,
      [] {
        SlicedBag net;
        DistributedModel model(net);
        auto train = step([&](const at::Tensor& tokens) {
          const auto wide = at::ones({1, 2 * net->first->weight.size(1)});
          return (model(tokens).sum() + at::linear(wide.to(at::kDouble), net->first->weight).sum());
        });
        train(samples(0, dp_rank()).tokens);
      },
      config_of(2), {1}));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("mat1 and mat2 shapes cannot be multiplied"),
                                HasSubstr("needs a table that is not marked")));
}

/// Layers of width 8, which compute next to nothing, on stage 0, and one on stage 1.
struct ThinImpl : torch::nn::Module {
  explicit ThinImpl(int layers) : top(register_module("top", nn::Linear(8, 8))) {
    for (int i = 0; i < layers; ++i) {
      thin.push_back(register_module("thin" + std::to_string(i), nn::DistributedLinear(8, 8)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : thin) x = layer(x);
    return top(x);
  }
  nn::Linear top;
  std::vector<nn::DistributedLinear> thin;
};
SMP_MODULE(Thin);

/// Of a step.
double predicted_seconds(int layers) {
  double seconds = 0;
  run_local(2 * kTp,
            [&] {
              torch::manual_seed(3);
              Thin net(layers);
              DistributedModel model(net);
              for (int i = 0; i < layers; ++i) model.set_partition("thin" + std::to_string(i), 0);
              model.set_partition("top", 1);
              auto train = step([&](const at::Tensor& x) {
                const auto loss = model(x).square().mean();
                model.backward(loss);
                return loss;
              });
              train(torch::ones({kMicrobatches * 100, 8}));
              if (rank() == 0) seconds = model.plan().summary()->chosen.step_seconds;
            },
            config_of(2), {1});
  return seconds;
}

/// Of each layer an all-to-all and a reduce-scatter, and their duals in backward.
TEST(GroupPlanning, CountsWhatDistributedModulesExchange) {
  double exchanges = 0;
  run_local(2 * kTp,
            [&] {
              const auto machine = job_machine(Rank::current());
              const double rows = 100 * 8 * sizeof(float);
              const auto seconds = [&](const Exchange& exchange, double bytes) {
                const auto there = exchange.traffic(kTp, bytes);
                const auto back = exchange.traffic_of_dual(kTp, bytes);
                return machine.sharers.seconds_for(there.rounds, there.bytes) +
                       machine.sharers.seconds_for(back.rounds, back.bytes);
              };
              exchanges = seconds(Exchange::all_to_all(1, 0), rows) +
                          seconds(Exchange::reduce_scatter(0), kTp * rows);
            },
            config_of(2), {1});
  EXPECT_GT(exchanges, 4 * 10e-6) << "four collectives";
  const double of_layer = (predicted_seconds(8) - predicted_seconds(1)) / 7 / kMicrobatches;
  EXPECT_GT(of_layer, exchanges);
  EXPECT_LT(of_layer, 2 * exchanges);
}

}  // namespace group_planning_test
}  // namespace smp::tp
