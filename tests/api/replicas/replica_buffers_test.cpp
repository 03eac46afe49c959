// Running statistics of replicas: their own, or at the start of every step those of the first
// (docs/data_parallelism.md, Limits).
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "zoo/zoo.h"

namespace smp::zoo {
namespace replica_buffers_test {

constexpr int kSteps = 3, kReplicas = 3;

/// The statistics are on the last stage.
struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : first(register_module("first", nn::Linear(3, 4))),
        norm(register_module("norm", nn::BatchNorm1d(4))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(first(x)); }
  nn::Linear first;
  nn::BatchNorm1d norm;
};
SMP_MODULE(Normed);

/// Of the running mean in each replica: after each step, from what was there before the step.
struct Statistics {
  std::map<std::pair<int, int>, Tensor> before, after, batch;  // by step and replica
};

/// @param batches  that each replica has; kSteps: all of them
Statistics train(bool broadcast, int stages,
                 const std::vector<int>& batches = std::vector<int>(kReplicas, kSteps)) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.auto_partition = false;
  config.default_partition = 0;
  config.broadcast_buffers = broadcast;
  Statistics statistics;
  run_local(stages * kReplicas,
            [&] {
              torch::manual_seed(5);
              Normed net;
              DistributedModel model(net);
              if (stages > 1) model.set_partition("norm", 1);
              model.place();
              auto body = smp::step([&](Tensor x) {
                auto loss = model(x).pow(2).mean();
                model.backward(loss);
                return loss;
              });
              const bool has_norm = pp_rank() == stages - 1;
              Join join;
              for (int step = 0; step < kSteps; ++step) {
                join.next(step < batches[static_cast<std::size_t>(dp_rank())]);
                const std::pair key(step, dp_rank());
                if (has_norm) statistics.before[key] = net->norm->running_mean.clone();
                const auto x = numbers(10 * step + dp_rank(), {6, 3});
                if (pp_rank() == 0) {
                  const torch::NoGradGuard no_grad;
                  statistics.batch[key] =
                      torch::linear(x, net->first->weight, net->first->bias).mean(0);
                }
                body(x);
                if (has_norm) statistics.after[key] = net->norm->running_mean.clone();
              }
            },
            config, {.seed = 3});
  return statistics;
}

void expect_updates_of(bool broadcast) {
  for (const int stages : {1, 2}) {
    const auto statistics = train(broadcast, stages);
    ASSERT_EQ(statistics.after.size(), static_cast<std::size_t>(kSteps * kReplicas));
    for (const auto& [key, after] : statistics.after) {
      const auto& [step, replica] = key;
      const auto& before = statistics.before.at({step, broadcast ? 0 : replica});
      EXPECT_TRUE(torch::allclose(after, 0.9 * before + 0.1 * statistics.batch.at(key), 1e-12))
          << "step " << step << ", replica " << replica;
    }
  }
}

TEST(ReplicaBuffers, AreEachReplicasOwn) { expect_updates_of(false); }

TEST(ReplicaBuffers, AreThoseOfTheFirstIfAsked) { expect_updates_of(true); }

/// The first replica runs out of batches; from then on it is the second that the others follow.
TEST(ReplicaBuffers, AreThoseOfTheFirstThatHasABatch) {
  for (const int stages : {1, 2}) {
    const auto statistics = train(true, stages, {1, 3, 2});
    for (const auto& [key, after] : statistics.after) {
      const auto& [step, replica] = key;
      const auto& before = statistics.before.at({step, step == 0 ? 0 : 1});
      const bool idle = (replica == 0 && step >= 1) || (replica == 2 && step >= 2);
      const auto expected = idle ? before : 0.9 * before + 0.1 * statistics.batch.at(key);
      EXPECT_TRUE(torch::allclose(after, expected, 1e-12))
          << stages << " stages, step " << step << ", replica " << replica;
    }
  }
}

// ---- buffers that modules write, and copies of them
// ----------------------------------------------

/// Divides by the number of its calls, and by a number that the program sets.
struct CountedImpl : torch::nn::Module {
  CountedImpl()
      : calls(register_buffer("calls", torch::zeros({}, torch::kDouble))),
        scale(register_buffer("scale", torch::ones({}, torch::kDouble))),
        linear(register_module("linear", nn::Linear(3, 3))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    calls += 1;
    return linear(x) / calls.clone() * scale;
  }
  Tensor calls, scale;
  nn::Linear linear;
};
SMP_MODULE(Counted);

using Numbers = std::map<std::pair<int, int>, double>;  // by step and replica

/// @return the losses; the program changes and reads what `second` divides by, on all ranks
Numbers losses_of_counted(int stages, bool broadcast) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.auto_partition = false;
  config.default_partition = 0;
  config.microbatches = 2;
  config.broadcast_buffers = broadcast;
  Numbers losses;
  run_local(2 * stages,
            [&] {
              torch::manual_seed(5);
              Counted first, second;
              nn::Sequential net(first, second);
              DistributedModel model(net);
              if (stages > 1) model.set_partition("1", 1);
              DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
              auto train = smp::step([&](const Tensor& x) {
                auto loss = (model(x) * second->scale).pow(2).mean();
                model.backward(loss);
                return loss;
              });
              for (int step = 0; step < 4; ++step) {
                {
                  const torch::NoGradGuard no_grad;
                  second->scale.fill_(1 + step);
                }
                optimizer.zero_grad();
                const auto loss = train(numbers(10 * step + dp_rank(), {4, 3})).reduce_mean();
                optimizer.step();
                losses[{step, dp_rank()}] = loss.item<double>();
              }
            },
            config, {.seed = 4});
  return losses;
}

TEST(ReplicaBuffers, ThatModulesWriteMayHaveCopies) {
  for (const bool broadcast : {false, true}) {
    const auto one_stage = losses_of_counted(1, broadcast);
    const auto two_stages = losses_of_counted(2, broadcast);
    ASSERT_EQ(two_stages.size(), 8);
    for (const auto& [key, loss] : one_stage) {
      EXPECT_NEAR(two_stages.at(key), loss, 1e-12 * std::abs(loss))
          << "step " << key.first << ", replica " << key.second << ", broadcast " << broadcast;
    }
  }
}

/// One row stands for all of a buffer, and windows on a row for another: no memory for each.
struct WideImpl : torch::nn::Module {
  WideImpl()
      : first(register_module("first", nn::Linear(3, 4))),
        last(register_module("last", nn::Linear(4, 4))) {
    to(torch::kDouble);
    wide = register_buffer("wide", torch::rand({1, 4}, torch::kDouble).expand({5, 4}));
    windows = register_buffer("windows", torch::rand({6}, torch::kDouble).unfold(0, 4, 1));
    large = register_buffer("large", torch::rand({1, 2}, torch::kDouble).expand({90'000, 2}));
  }
  Tensor forward(const Tensor& x) {
    return last(first(x) * wide[4]) * windows[2] + large.sum() / 90'000;
  }
  nn::Linear first, last;
  Tensor wide, windows, large;
};
SMP_MODULE(Wide);

/// LibTorch does not write them, and replicas begin with the values of the first.
TEST(ReplicaBuffers, ThatAreExpandedTrainAsInOneProcess) {
  const auto build = [] {
    torch::manual_seed(5);
    return Wide();
  };
  for (const int stages : {1, 2}) {
    for (const char* initial : {"equal", "first"}) {
      for (const bool delayed : {false, true}) {
        Config config;
        config.pipeline_parallel_degree = stages;
        config.initial_values = initial;
        config.broadcast_buffers = true;
        auto plain = build();
        torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
        for (int step = 0; step < kSteps; ++step) {
          plain_optimizer.zero_grad();
          std::vector<Tensor> rows;
          for (int r = 0; r < 2; ++r) rows.push_back(numbers(10 * step + r, {6, 3}));
          plain->forward(torch::cat(rows)).pow(2).mean().backward();
          plain_optimizer.step();
        }
        run_local(
            2 * stages,
            [&] {
              std::optional<delay_param_initialization> delay;
              if (delayed) delay.emplace();
              auto net = build();
              delay.reset();
              DistributedModel model(net);
              if (stages > 1) model.set_partition("last", 1);
              DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
              auto body = smp::step([&](Tensor x) {
                auto loss = model(x).pow(2).mean();
                model.backward(loss);
                return loss;
              });
              for (int step = 0; step < kSteps; ++step) {
                optimizer.zero_grad();
                body(numbers(10 * step + dp_rank(), {6, 3}));
                optimizer.step();
              }
              const auto expected = plain->named_parameters();
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                EXPECT_TRUE(torch::allclose(parameter, expected[name], 1e-12)) << name;
              }
            },
            config);
      }
    }
  }
}

}  // namespace replica_buffers_test
}  // namespace smp::zoo
