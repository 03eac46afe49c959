// Gradients that modules add by themselves, and what a microbatch counts, against one process of
// plain LibTorch: stages and replicas, even and uneven rows, all kinds of losses.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/added_gradients.h"
#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace added_gradients_test {

using testing::HasSubstr;

constexpr int kWidth = 4;
constexpr int kMicrobatches = 2;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(
      Adding way, const AddedWeight& weight = [] { return 1.0; })
      : first(register_module("first", nn::Linear(kWidth, kWidth))),
        gate(register_module("gate", Gate(way, weight))),
        last(register_module("last", nn::Linear(kWidth, 2))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(gate(first(x))); }
  nn::Linear first;
  Gate gate;
  nn::Linear last;
};
SMP_MODULE(Net);

at::Tensor loss_of(const at::Tensor& y, const std::string& loss) {
  return loss == "sum" ? y.square().sum() : y.square().mean();
}

/// How a model is trained.
struct Layout {
  Adding way;
  std::string loss = "mean";
  std::vector<int> rows = {4, 4};  ///< of each replica
  int stages = 1;
  bool asks = true;  ///< for the weight of what it adds
  bool shard = false;
  bool overlap = true;
  bool static_mode = false;
  int steps = 3;
  std::vector<double> weights = {0.75, 2.5};
  std::uint64_t seed = 1;
};

void PrintTo(const Layout& run, std::ostream* out) {
  *out << name_of(run.way) << ", loss " << run.loss << ", " << run.stages << " stages, rows";
  for (const int rows : run.rows) *out << ' ' << rows;
  *out << (run.shard ? ", sharded" : "") << (run.overlap ? "" : ", added at the end")
       << (run.static_mode ? ", static" : "");
}

at::Tensor batch(int step, int replica, int rows) {
  const auto n = at::arange(rows * kWidth, at::kDouble).view({rows, kWidth});
  return at::sin(n * 0.9 + 5 * step + 3 * replica);
}

/// The microbatches of a batch, as even as possible, the longer ones first.
std::vector<at::Tensor> microbatches(const at::Tensor& x) {
  const auto count = std::min<std::int64_t>(kMicrobatches, x.size(0));
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = x.size(0) / count + (i < x.size(0) % count ? 1 : 0);
    parts.push_back(x.narrow(0, begin, length));
    begin += length;
  }
  return parts;
}

using Tensors = std::map<std::string, at::Tensor>;

/// Of one process: gradients of each step, then final parameters.
std::vector<Tensors> reference(const Layout& run) {
  torch::manual_seed(5);
  NetImpl net(Adding::kNone);
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  double all_rows = 0;
  for (const int rows : run.rows) all_rows += rows;
  std::vector<Tensors> steps;
  for (int step = 0; step < run.steps; ++step) {
    optimizer.zero_grad();
    double added = 0;
    for (std::size_t r = 0; r < run.rows.size(); ++r) {
      const auto parts = microbatches(batch(step, static_cast<int>(r), run.rows[r]));
      for (std::size_t m = 0; m < parts.size(); ++m) {
        const double weight = run.loss == "sum" ? 1.0
                              : run.loss == "mean"
                                  ? static_cast<double>(parts[m].size(0)) / all_rows
                                  : run.weights[m] / static_cast<double>(run.rows.size());
        (loss_of(net.forward(parts[m]), run.loss) * weight).backward();
        added += run.asks ? weight : 1.0;
      }
    }
    if (run.way != Adding::kNone) (penalty_of(net.gate->w) * added).backward();
    auto& gradients = steps.emplace_back();
    for (const auto& item : net.named_parameters()) {
      gradients[item.key()] = item.value().grad().clone();
    }
    optimizer.step();
  }
  auto& finals = steps.emplace_back();
  for (const auto& item : net.named_parameters()) finals[item.key()] = item.value().detach();
  return steps;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-14)) << what << " on rank " << rank() << "\n"
                                                         << got << "\n"
                                                         << expected;
}

/// Trains as `run` says, and compares. @return what the ranks have, for comparisons of bits
std::vector<Tensors> train(const Layout& run, const std::vector<Tensors>& expected) {
  Config config;
  config.pipeline_parallel_degree = run.stages;
  config.microbatches = kMicrobatches;
  config.loss = run.loss;
  config.shard_optimizer_state = run.shard;
  config.overlapping_allreduce = run.overlap;
  config.bucket_cap_mb = 1e-4;
  config.static_mode = run.static_mode;
  config.plan_cache = "off";
  if (run.loss == "weights") config.loss_weights = run.weights;
  const auto last = static_cast<std::size_t>(run.steps);
  std::vector<Tensors> seen(last + 1);
  run_local(run.stages * static_cast<int>(run.rows.size()),
            [&] {
              torch::manual_seed(5);
              Net net(run.way,
                      run.asks ? AddedWeight(microbatch_weight) : AddedWeight([] { return 1.0; }));
              DistributedModel<Net> model(net);
              model.set_partition("", 0);
              model.set_partition("gate", run.stages - 1);
              model.set_partition("last", 0);
              DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
              auto body = smp::step([&](const at::Tensor& x) {
                const auto loss = loss_of(model(x), run.loss);
                model.backward(loss);
                return loss;
              });
              for (int step = 0; step < run.steps; ++step) {
                optimizer.zero_grad();
                body(batch(step, dp_rank(), run.rows[static_cast<std::size_t>(dp_rank())]));
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  if (!parameter.grad().defined()) continue;  // its owner has it
                  seen[static_cast<std::size_t>(step)][name] = parameter.grad().clone();
                  expect_close(parameter.grad(), expected[static_cast<std::size_t>(step)].at(name),
                               "gradient of " + name + " in step " + std::to_string(step));
                }
                optimizer.step();
              }
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                seen[last][name] = parameter.detach().clone();
                expect_close(parameter.detach(), expected[last].at(name), name);
              }
            },
            config, {.seed = run.seed});
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].size(), expected[i].size());
  return seen;
}

void expect_as_in_one_process(const Layout& run) {
  SCOPED_TRACE(testing::PrintToString(run));
  train(run, reference(run));
}

class AddedGradients : public testing::TestWithParam<Adding> {};

TEST_P(AddedGradients, EqualOneProcessInReplicasOfPipelines) {
  for (const int stages : {1, 2}) {
    for (const auto* loss : {"mean", "sum", "weights"}) {
      for (const auto& rows : std::vector<std::vector<int>>{{4}, {4, 4}, {5, 3}, {4, 3, 2}}) {
        const bool asks = std::string(loss) != "sum";
        expect_as_in_one_process({GetParam(), loss, rows, stages, asks});
      }
    }
  }
}

TEST_P(AddedGradients, CountOnceAMicrobatchWhereTheyDoNotAskAndAskingChangesNothingInASum) {
  expect_as_in_one_process({GetParam(), "mean", {5, 3}, 2, false});
  expect_as_in_one_process({GetParam(), "weights", {5, 3}, 2, false});
  expect_as_in_one_process({GetParam(), "sum", {5, 3}, 2, true});
}

TEST_P(AddedGradients, OfReplicasWithFewerMicrobatches) {
  expect_as_in_one_process({GetParam(), "mean", {1, 4}, 2});
  expect_as_in_one_process({GetParam(), "sum", {1, 4}, 1, false});
}

TEST_P(AddedGradients, WithShardedStateAndSumsAtTheEnd) {
  for (const bool shard : {false, true}) {
    for (const bool overlap : {false, true}) {
      Layout run{GetParam(), "mean", {5, 3}, 2};
      run.shard = shard;
      run.overlap = overlap;
      expect_as_in_one_process(run);
    }
  }
}

TEST_P(AddedGradients, InReplayedSteps) {
  Layout run{GetParam(), "mean", {5, 3}, 2};
  run.static_mode = true;
  run.steps = 9;
  expect_as_in_one_process(run);
}

TEST_P(AddedGradients, HaveTheSameBitsWhateverTheTiming) {
  Layout run{GetParam(), "mean", {5, 3}, 2};
  const auto expected = reference(run);
  const auto first = train(run, expected);
  for (run.seed = 2; run.seed < 8; ++run.seed) {
    run.overlap = run.seed % 2 == 0;
    const auto other = train(run, expected);
    for (std::size_t i = 0; i < first.size(); ++i) {
      for (const auto& [name, tensor] : first[i]) {
        EXPECT_TRUE(at::equal(tensor, other[i].at(name))) << name << ", seed " << run.seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, AddedGradients, testing::ValuesIn(kAddings), [](const auto& info) {
  auto name = name_of(info.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// The one process that a user has in mind: one loss over the global batch, and the penalty once.
TEST(AddedGradientsOfAMean, EqualOnePassOverTheGlobalBatch) {
  Layout run{Adding::kFunction, "mean", {5, 3}, 2};
  torch::manual_seed(5);
  NetImpl net(Adding::kNone);
  const auto all = at::cat({batch(0, 0, 5), batch(0, 1, 3)});
  (loss_of(net.forward(all), "mean") + penalty_of(net.gate->w)).backward();
  const auto expected = reference(run);
  for (const auto& item : net.named_parameters()) {
    expect_close(expected[0].at(item.key()), item.value().grad(), item.key());
  }
}

// ---- what the weight is, and where --------------------------------------------------------------

TEST(MicrobatchWeight, IsTheShareInTheBatchOfTheJob) {
  for (const int stages : {1, 2}) {
    Config config;
    config.pipeline_parallel_degree = stages;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    config.skip_tracing = true;
    run_local(
        2 * stages,
        [&] {
          std::map<int, std::set<double>> asked;  // by microbatch
          torch::manual_seed(5);
          Net net(Adding::kFunction, [&] {
            asked[current_microbatch()].insert(microbatch_weight());
            return microbatch_weight();
          });
          net->gate->w.register_hook([&](const at::Tensor& gradient) {
            asked[current_microbatch()].insert(microbatch_weight());
            return gradient;
          });
          DistributedModel<Net> model(net);
          model.set_partition("", 0);
          model.set_partition("gate", stages - 1);
          auto train = smp::step([&](const at::Tensor& x) {
            const auto loss = model(x).sum();
            model.backward(loss);
            return microbatch_weight();
          });
          EXPECT_EQ(microbatch_weight(), 1.0);
          const auto own = train(batch(0, dp_rank(), dp_rank() == 0 ? 5 : 3)).outputs();
          EXPECT_EQ(microbatch_weight(), 1.0);
          const std::vector<double> expected =
              dp_rank() == 0 ? std::vector<double>{0.375, 0.25} : std::vector<double>{0.25, 0.125};
          ASSERT_EQ(own.size(), expected.size());
          for (std::size_t m = 0; m < expected.size(); ++m) {
            EXPECT_DOUBLE_EQ(own[m], expected[m]);
            if (pp_rank() != stages - 1) continue;
            ASSERT_EQ(asked[static_cast<int>(m)].size(), 1u) << "forward, backward and hooks agree";
            EXPECT_DOUBLE_EQ(*asked[static_cast<int>(m)].begin(), expected[m]);
          }
          const at::NoGradGuard no_grad;  // alone: other replicas do not take part
          const auto evaluate = smp::step([&](const at::Tensor& x) {
            static_cast<void>(model(x));
            return microbatch_weight();
          })(batch(1, 0, 3));
          EXPECT_DOUBLE_EQ(evaluate.outputs()[0] + evaluate.outputs()[1], 1.0);
        },
        config, {1});
  }
}

TEST(MicrobatchWeight, IsOneWithoutASession) { EXPECT_EQ(microbatch_weight(), 1.0); }

TEST(MicrobatchWeight, IsNotGuessedOnAnotherThread) {
  on_ranks(1, [] {
    std::string text;
    auto train = smp::step([&](const at::Tensor&) {
      if (is_tracing()) return;
      std::thread([&] {
        text = refusal<UsageError>([] { static_cast<void>(microbatch_weight()); });
      }).join();
    });
    train(at::ones({2}));
    EXPECT_THAT(text, HasSubstr("on another thread"));
  });
}

}  // namespace added_gradients_test
}  // namespace smp
