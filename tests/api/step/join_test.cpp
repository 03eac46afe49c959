// Replicas that have different numbers of batches go on together (docs/data_parallelism.md, Uneven
// inputs).
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "support/refusal.h"
#include "zoo/zoo.h"

namespace smp::zoo {
namespace join_test {

using testing::AllOf;
using testing::HasSubstr;

/// 3 -> 1 over one stage or two. Float64.
struct JoinedImpl : torch::nn::Module {
  JoinedImpl()
      : first(register_module("first", nn::Linear(3, 8))),
        second(register_module("second", nn::Linear(8, 1))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  nn::Linear first, second;
};
SMP_MODULE(Joined);

Joined make_joined() {
  torch::manual_seed(6);
  return Joined();
}

torch::optim::SGDOptions options() { return torch::optim::SGDOptions(0.1).momentum(0.5); }

/// How many batches each replica has, and what becomes of them.
struct Uneven {
  std::vector<int> batches;
  int stages = 1;
  std::string loss = "mean";
  bool divide_by_all = true;
  double clip = 0;
  bool shard = false;
  bool overlap = true;
  bool place_first = true;
  int epochs = 1;
  bool other_rows = false;  ///< each replica has batches of another size

  int replicas() const { return static_cast<int>(batches.size()); }
  int rows(int replica) const { return other_rows ? 4 + 2 * replica : 4; }
  bool has(int replica, int round) const {
    return round < batches[static_cast<std::size_t>(replica)];
  }
};

Tensor rows_of(const Uneven& run, int round, int replica) {
  return numbers(100 * round + replica, {run.rows(replica), 3});
}

using Values = std::map<std::string, Tensor>;

/// One process with plain LibTorch.
Values reference(const Uneven& run) {
  auto net = make_joined();
  torch::optim::SGD optimizer(net->parameters(), options());
  const int rounds = *std::max_element(run.batches.begin(), run.batches.end());
  for (int round = 0; round < run.epochs * rounds; ++round) {
    optimizer.zero_grad();
    std::vector<Tensor> batches;
    for (int replica = 0; replica < run.replicas(); ++replica) {
      if (run.has(replica, round % rounds)) {
        batches.push_back(rows_of(run, round % rounds, replica));
      }
    }
    const auto squares = net->forward(torch::cat(batches)).pow(2);
    auto loss = run.loss == "sum" ? squares.sum() : squares.mean();
    if (run.loss == "mean" && run.divide_by_all) {
      loss = loss * (static_cast<double>(batches.size()) / run.replicas());
    }
    loss.backward();
    if (run.clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), run.clip);
    optimizer.step();
  }
  Values values;
  for (const auto& item : net->named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

Config config_of(const Uneven& run) {
  Config config;
  config.pipeline_parallel_degree = run.stages;
  config.microbatches = 2;
  config.auto_partition = false;
  config.default_partition = 0;
  config.loss = run.loss;
  config.shard_optimizer_state = run.shard;
  config.overlapping_allreduce = run.overlap;
  return config;
}

/// The same loop on every rank. @return what each rank holds, as "rank name"
Values train(const Uneven& run, std::uint64_t seed = 1) {
  Values values;
  run_local(
      run.stages * run.replicas(),
      [&] {
        auto net = make_joined();
        DistributedModel model(net);
        if (run.stages > 1) model.set_partition("second", 1);
        DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), options()));
        if (run.place_first) model.place();
        auto body = smp::step([&](Tensor x) {
          EXPECT_TRUE(x.defined());
          auto loss = model(x).pow(2);
          loss = run.loss == "sum" ? loss.sum() : loss.mean();
          model.backward(loss);
          return loss;
        });
        for (int epoch = 0; epoch < run.epochs; ++epoch) {
          Join join({.divide_by_initial_world_size = run.divide_by_all});
          int round = 0;
          // Only the first stage knows; others are told.
          for (; join.next(pp_rank() == 0 && run.has(dp_rank(), round)); ++round) {
            EXPECT_EQ(join.active(), run.has(dp_rank(), round));
            optimizer.zero_grad();
            auto loss = body(join.active() ? rows_of(run, round, dp_rank()) : Tensor());
            if (run.clip > 0) model.clip_grad_norm_(run.clip);
            optimizer.step();
            if (join.active()) {
              EXPECT_TRUE(loss.reduce_mean().defined());
            } else {
              EXPECT_THAT(refusal([&] { loss.reduce_mean(); }), HasSubstr("no step filled it"));
            }
          }
          EXPECT_EQ(round, *std::max_element(run.batches.begin(), run.batches.end()));
          EXPECT_EQ(join.num_active(), 0);
        }
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          values[std::to_string(rank()) + " " + name] = parameter.detach().clone();
        }
      },
      config_of(run), {.seed = seed});
  return values;
}

void expect_as_in_one_process(const Uneven& run) {
  const auto expected = reference(run);
  const auto values = train(run);
  EXPECT_EQ(values.size(), static_cast<std::size_t>(4 * run.replicas()));
  Values of_first;
  for (const auto& [key, value] : values) {
    const auto name = key.substr(key.find(' ') + 1);
    EXPECT_TRUE(torch::allclose(value, expected.at(name), 1e-12, 1e-13)) << key;
    const auto& same = of_first.try_emplace(name, value).first->second;
    EXPECT_TRUE(at::equal(value, same)) << key << ": replicas differ";
  }
}

TEST(Join, DividesByAllReplicasAsTorchDoes) {
  for (const int stages : {1, 2}) {
    for (const auto& batches : std::vector<std::vector<int>>{{5, 3}, {2, 4}, {3, 1, 2}, {2, 2}}) {
      SCOPED_TRACE(testing::PrintToString(batches) + " x " + std::to_string(stages));
      expect_as_in_one_process({.batches = batches, .stages = stages});
    }
  }
}

TEST(Join, DividesByActiveOnesIfAsked) {
  for (const int stages : {1, 2}) {
    for (const auto& batches : std::vector<std::vector<int>>{{5, 3}, {2, 4}, {3, 1, 2}}) {
      SCOPED_TRACE(testing::PrintToString(batches) + " x " + std::to_string(stages));
      expect_as_in_one_process({.batches = batches, .stages = stages, .divide_by_all = false});
    }
  }
}

TEST(Join, WeighsByRowsOfThoseThatHaveSome) {
  for (const bool all : {true, false}) {
    expect_as_in_one_process(
        {.batches = {3, 1, 2}, .stages = 2, .divide_by_all = all, .other_rows = true});
  }
}

TEST(Join, AddsUpASumOfWhatThereIs) {
  for (const bool all : {true, false}) {
    expect_as_in_one_process({.batches = {1, 3}, .stages = 2, .loss = "sum", .divide_by_all = all});
  }
}

TEST(Join, KeepsClippingAndShardedStateRight) {
  for (const bool shard : {false, true}) {
    SCOPED_TRACE(shard);
    expect_as_in_one_process({.batches = {4, 2}, .stages = 2, .clip = 0.05, .shard = shard});
  }
}

TEST(Join, HasTheSameBitsWhateverTheTiming) {
  Uneven run{.batches = {4, 2, 3}, .stages = 2};
  run.overlap = false;
  const auto expected = train(run);
  run.overlap = true;
  for (std::uint64_t seed = 2; seed < 6; ++seed) {
    for (const auto& [name, value] : train(run, seed)) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name << ", seed " << seed;
    }
  }
}

TEST(Join, MayRunEpochAfterEpoch) {
  expect_as_in_one_process({.batches = {3, 1}, .stages = 2, .epochs = 3});
}

// Also the first replica, whose batch would have shown what modules cost.
TEST(Join, PlacesModelsThoughAReplicaNeverHasABatch) {
  for (const auto& batches : std::vector<std::vector<int>>{{0, 2}, {2, 0}}) {
    expect_as_in_one_process({.batches = batches, .stages = 2, .place_first = false});
  }
}

TEST(Join, FailsEverywhereIfAReplicaFails) {
  run_local(
      4,
      [] {
        auto net = make_joined();
        DistributedModel model(net);
        model.set_partition("second", 1);
        auto body = smp::step([&](Tensor x, bool fails) {
          if (fails) throw std::out_of_range("planted");
          auto loss = model(x).pow(2).mean();
          model.backward(loss);
          return loss;
        });
        Join join;
        for (int round = 0; join.next(dp_rank() == 0 || round == 0); ++round) {
          if (round == 4) break;
          model.zero_grad();
          const bool fails = round == 2;
          const auto train = [&] { body(numbers(round, {4, 3}), fails); };
          if (fails) {
            EXPECT_THROW(train(), std::out_of_range);
          } else {
            train();
          }
        }
      },
      config_of({.batches = {4, 1}, .stages = 2}));
}

TEST(Join, IsOverAfterItsLastRound) {
  run_local(
      4,
      [] {
        auto net = make_joined();
        DistributedModel model(net);
        model.set_partition("second", 1);
        auto body = smp::step([&](Tensor x) {
          auto loss = model(x).pow(2).mean();
          model.backward(loss);
          return loss;
        });
        {
          Join join;
          while (join.next(false)) {
          }
          EXPECT_THAT(refusal<UsageError>([&] {
                        body(numbers(0, {4, 3}));
                      }),
                      testing::HasSubstr("after the last round of smp::Join"));
          const torch::NoGradGuard no_grad;
          auto evaluate = smp::step([&](Tensor x) { return model(x).sum(); });
          evaluate(numbers(0, {4, 3}));
        }
        body(numbers(0, {4, 3}));
      },
      config_of({.batches = {4, 1}, .stages = 2}));
}

TEST(Join, MustBeTheOnlyOneAndOutsideOfSteps) {
  run_local(
      2,
      [] {
        Joined net = make_joined();
        DistributedModel model(net);
        {
          Join join;
          EXPECT_TRUE(join.active());
          EXPECT_EQ(join.num_active(), 2);
          EXPECT_THAT(refusal([] { Join second; }), HasSubstr("another smp::Join lives"));
          auto body = smp::step([&](Tensor x) {
            EXPECT_THAT(refusal([&] { join.next(true); }), HasSubstr("in the body of a step"));
            EXPECT_THAT(refusal([] { Join second; }), HasSubstr("in the body of a step"));
            auto loss = model(x).mean();
            model.backward(loss);
            return loss;
          });
          body(numbers(1, {4, 3}));
        }
        Join another;
      },
      config_of({.batches = {1, 1}}));
}

TEST(Join, EndsIfAReplicaLeaves) {
  std::string text;
  try {
    run_local(
        2,
        [] {
          Join join;
          for (int round = 0; round < (rank() == 0 ? 3 : 2); ++round) join.next(true);
        },
        config_of({.batches = {1, 1}}));
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("whether another replica has a batch (smp::Join)"),
                          HasSubstr("waits for rank 1")));
}

TEST(Join, RefusesReplicasThatShareModulesAndDiffer) {
  auto config = config_of({.batches = {1, 1}});
  config.tensor_parallel_degree = 2;
  run_local(
      4,
      [] {
        Join join;
        EXPECT_TRUE(join.next(dp_rank() < 2));
        EXPECT_EQ(join.active(), dp_rank() < 2);
        EXPECT_THAT(refusal([&] { join.next(dp_rank() == 2); }),
                    AllOf(HasSubstr("replica 2 has a batch, replica 3 has none"),
                          HasSubstr("share distributed modules")));
      },
      config);
}

}  // namespace join_test
}  // namespace smp::zoo
