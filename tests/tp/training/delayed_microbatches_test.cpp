// Microbatches that are held up differently on every rank, in forward and in backward, while
// gradients are added up early: nothing waits for ever, and all bits are those of a run without.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "api/replicas/replicas.h"
#include "d2d/wire/simulated_job.h"
#include "smp/smp.h"
#include "smp/tp.h"

namespace smp::tp {
namespace delayed_microbatches_test {

constexpr int kSteps = 2, kMicrobatches = 4;
constexpr std::int64_t kRows = 8;

/// What holds a rank up, up to 2 ms of simulated time at each place; none with seed 0.
class Delays {
 public:
  Delays(std::uint64_t seed, int rank) : on_(seed > 0), random_(seed * 64 + rank) {}
  void pause() {
    if (!on_) return;
    const auto length = static_cast<base::Nanoseconds>(random_() % 2'000'000);
    fiber::Scheduler::instance().sleep_for(length, d2d::kForTheTest);
  }
  /// Here, and when the gradient of `x` comes.
  at::Tensor pause_at(const at::Tensor& x) {
    pause();
    if (x.requires_grad()) {
      x.register_hook([this](const at::Tensor&) { pause(); });
    }
    return x;
  }

 private:
  const bool on_;
  std::mt19937_64 random_;
};

/// tokens [B, 3] -> [B, 4] through every kind of distributed module, and one that is none.
struct EveryKindImpl : torch::nn::Module {
  explicit EveryKindImpl(Delays& with) : delays(with) { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = delays.pause_at(embed(tokens));
    x = delays.pause_at(first(x));
    x = delays.pause_at(whole(torch::tanh(x)));
    x = delays.pause_at(norm(x));
    return delays.pause_at(last(torch::tanh(x).mean(1)));
  }
  Delays& delays;
  nn::DistributedEmbedding embed = register_module("embed", nn::DistributedEmbedding(11, 4));
  nn::DistributedLinear first = register_module("first", nn::DistributedLinear(4, 4));
  nn::Linear whole = register_module("whole", nn::Linear(4, 4));
  nn::DistributedLayerNorm norm = register_module("norm", nn::DistributedLayerNorm(4));
  nn::DistributedLinear last = register_module("last", nn::DistributedLinear(4, 4));
};
SMP_MODULE(EveryKind);

at::Tensor tokens_of(int step, int batch) {
  const auto n = at::arange(kRows * 3, at::kLong);
  return at::remainder(n * n + 7 * step + 3 * batch, 11).view({kRows, 3});
}

struct Case {
  const char* name;
  int ranks, tp, pp;
  bool prescaled;
  std::uint64_t seeds;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

/// By rank and name, after all steps.
using Values = std::map<std::string, at::Tensor>;

struct Run {
  Values values;
  std::uint64_t early = 0;  // buckets
};

Config config_of(const Case& one) {
  Config config;
  config.tensor_parallel_degree = one.tp;
  config.pipeline_parallel_degree = one.pp;
  config.prescaled_batch = one.prescaled;
  config.microbatches = kMicrobatches;
  config.bucket_cap_mb = 1e-4;  // a bucket is a layer or so
  config.auto_partition = false;
  config.default_partition = 0;
  config.skip_tracing = one.pp == 1;  // a thousand trial runs would take longer than the rest
  return config;
}

void train(Run& run, std::uint64_t seed) {
  Delays delays(seed, rank());
  torch::manual_seed(3);
  EveryKind net(delays);
  DistributedModel model(net);
  if (pp_size() > 1) model.set_partition("first", 1);
  if (pp_size() > 1) model.set_partition("whole", 1);
  DistributedOptimizer optimizer(
      model, torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  auto body = step([&](const at::Tensor& tokens) {
    delays.pause();
    const auto loss = model(tokens).square().mean();
    delays.pause();
    model.backward(loss);
    return loss;
  });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    body(tokens_of(s, data_shard().index));
    optimizer.step();
  }
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    run.values[std::to_string(rank()) + ' ' + name] = parameter.detach().clone();
  }
  run.early += Replicas::current().gradients().averaged_early();
}

Run run_of(const Case& one, std::uint64_t seed) {
  Run run;
  run_local(one.ranks, [&] { train(run, seed); }, config_of(one), {seed, seed > 0 ? 1e-4 : 1e-6});
  return run;
}

class DelayedMicrobatches : public testing::TestWithParam<Case> {};

TEST_P(DelayedMicrobatches, EndWithTheSameBits) {
  const auto one = GetParam();
  const auto expected = run_of(one, 0).values;
  std::uint64_t early = 0;
  for (std::uint64_t seed = 1; seed <= one.seeds; ++seed) {
    const auto run = run_of(one, seed);
    early += run.early;
    ASSERT_EQ(run.values.size(), expected.size());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(at::equal(run.values.at(name), value)) << name << ", seed " << seed;
    }
  }
  EXPECT_GT(early, one.seeds) << "buckets were to be added up while steps ran";
}

/// 1000 seeds together.
INSTANTIATE_TEST_SUITE_P(Ranks, DelayedMicrobatches,
                         testing::Values(Case{"TwoRanks", 2, 2, 1, false, 300},
                                         Case{"FourRanks", 4, 4, 1, false, 150},
                                         Case{"TwoReplicas", 4, 2, 1, false, 200},
                                         Case{"TwoStages", 4, 2, 2, false, 150},
                                         Case{"PrescaledReplicas", 4, 2, 1, true, 100},
                                         Case{"PrescaledStages", 4, 2, 2, true, 100}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace delayed_microbatches_test
}  // namespace smp::tp
