// Every precision together with recomputation, accumulation, evaluation, clipping, replicas,
// sharded state, jobs that are cut and go on, and files of another precision.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "smp/checkpoint.h"
#include "smp/precision/grad_scaler.h"
#include "smp/recompute/activation_checkpointing.h"
#include "smp/smp.h"

namespace smp {
namespace precision_mixes_test {

using at::Tensor;

constexpr std::int64_t kWords = 23, kWidth = 16;
constexpr int kBlocks = 4, kSteps = 6;

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear up = register_module("up", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(2 * kWidth, kWidth));
};
SMP_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& ids) {
    auto x = table(ids);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  nn::Embedding table = register_module("table", nn::Embedding(kWords, kWidth));
  nn::ModuleList blocks;
  nn::Linear head = register_module("head", nn::Linear(kWidth, kWords));
};
SMP_MODULE(Net);

/// How a job trains. Those of the first group change the results.
struct Job {
  std::string precision;
  int accumulated = 1;  ///< steps of the model for each of the optimizer
  double clip = 0;
  bool half = false;  ///< autocast in float16
  bool adam = true;

  int stages = 1, replicas = 1;
  std::string schedule = "interleaved";
  bool recompute = false, evaluate = false, sharded = false, no_sync = false, to_none = true;
  bool delayed = false, static_mode = false;

  bool scales() const { return precision == "fp16" || half; }
  /// The same on one rank, without all that should change nothing.
  Job plain() const { return {precision, accumulated, clip, half, adam}; }
  Config config() const {
    Config config;
    config.precision = precision;
    config.microbatches = 4 / replicas;
    config.pipeline = schedule;
    config.pipeline_parallel_degree = stages;
    config.shard_optimizer_state = sharded;
    config.static_mode = static_mode;
    config.auto_partition = false;
    config.default_partition = 0;
    config.skip_tracing = true;
    config.plan_cache = "off";
    return config;
  }
};

/// What a job leaves, and another goes on from.
struct State {
  StateDict model, optimizer, scaler;
  double loss = 0;
};

Tensor tokens(int number) {
  auto generator = at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(number));
  return torch::randint(kWords, {8, 6}, generator, torch::kLong);
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Job& job, const Net& net) {
  using namespace torch::optim;
  if (job.adam) return std::make_unique<AdamW>(net->parameters(), AdamWOptions(1e-2));
  return std::make_unique<SGD>(net->parameters(), SGDOptions(0.1).momentum(0.9));
}

Net net_of(const Job& job) {
  std::optional<delay_param_initialization> delay;
  if (job.delayed) delay.emplace();
  torch::manual_seed(5);
  Net net;
  for (const auto& block : *net->blocks) {
    if (job.recompute) set_activation_checkpointing(*block);
  }
  return net;
}

/// One rank's part of steps [first, last).
State train(const Job& job, int first, int last, const State* from) {
  if (job.half) at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const auto net = net_of(job);
  DistributedModel model(net);
  for (int i = 0; i < kBlocks; ++i) {
    model.set_partition("blocks." + std::to_string(i), i * job.stages / kBlocks);
  }
  model.set_partition("head", job.stages - 1);
  DistributedOptimizer optimizer(model, optimizer_of(job, net));
  GradScaler scaler({.init_scale = 1024, .growth_interval = 3, .enabled = job.scales()});
  if (from != nullptr) {
    model.load_state_dict(from->model);
    load_optimizer_state_dict(model, optimizer, from->optimizer);
    if (!from->scaler.empty()) scaler.load_state_dict(from->scaler);
    set_step_count(first);
  }
  const auto loss_of = [&](const Tensor& ids) {
    return at::cross_entropy_loss(model(ids).to(at::kFloat).flatten(0, 1), ids.flatten());
  };
  auto step = smp::step([&](const Tensor& ids) {
    const auto loss = loss_of(ids);
    model.backward(scaler.scale(loss));
    return loss;
  });
  auto evaluate = smp::step([&](const Tensor& ids) { return loss_of(ids); });
  State state;
  for (int number = first; number < last; ++number) {
    optimizer.zero_grad(job.to_none);
    for (int part = 0; part < job.accumulated; ++part) {
      std::optional<NoSync> apart;
      if (job.no_sync && part + 1 < job.accumulated) apart.emplace(model.no_sync());
      const auto rows = tokens(number * job.accumulated + part).chunk(job.replicas);
      state.loss = step(rows[static_cast<std::size_t>(dp_rank())]).reduce_mean().item<double>();
    }
    if (job.clip > 0) {
      scaler.unscale_(optimizer);
      clip_grad_norm_(model, job.clip);
    }
    scaler.step(optimizer);
    scaler.update();
    if (!job.evaluate) continue;
    const torch::NoGradGuard no_grad;
    model.eval();
    evaluate(tokens(900 + number));
    model.train();
  }
  for (const auto& [name, value] : model.state_dict(kAllPpRanks)) {
    state.model.insert(name, value.clone());
  }
  state.optimizer = optimizer_state_dict(model, optimizer, kAllPpRanks);
  if (job.scales()) state.scaler = scaler.state_dict();
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  return state;
}

/// Trains, and requires that all replicas have the same parameters.
State run(const Job& job, int first = 0, int last = kSteps, const State* from = nullptr) {
  std::vector<State> states;
  run_local(job.stages * job.replicas, [&] { states.push_back(train(job, first, last, from)); },
            job.config(), {.seed = 3});
  for (const auto& state : states) {
    for (const auto& [name, value] : state.model) {
      EXPECT_TRUE(torch::equal(value, states[0].model.at(name))) << name << " of replicas";
    }
  }
  return states[0];
}

/// The largest difference of a parameter, over its largest element.
double difference(const State& one, const State& other) {
  double most = 0;
  for (const auto& [name, value] : one.model) {
    const auto wide = other.model.at(name).to(at::kDouble);
    const auto scale = std::max(1e-3, wide.abs().max().item<double>());
    const double error = (value.to(at::kDouble) - wide).abs().max().item<double>() / scale;
    if (!(error <= most)) most = error;  // NaN too
  }
  return most;
}

const std::vector<std::string> kPrecisions{"fp32", "amp", "bf16", "bf16_sr", "fp16"};

/// Sums of replicas are rounded once more, to the other neighbour at times; float32's not so far.
double tolerance_of(const std::string& precision) {
  return precision == "fp32" || precision == "amp" ? 1e-5 : precision == "fp16" ? 4e-3 : 0.1;
}

TEST(PrecisionMixes, StagesAndWhatRunsBesideChangeNoBit) {
  for (const auto& precision : kPrecisions) {
    std::vector<Job> jobs(6, Job{precision});
    jobs[0].recompute = true, jobs[0].schedule = "zero_bubble";
    jobs[1].recompute = jobs[1].evaluate = true;
    jobs[2].accumulated = 3, jobs[2].delayed = true;
    jobs[3].clip = 0.5, jobs[3].evaluate = true, jobs[3].schedule = "1f1b";
    jobs[4].static_mode = jobs[4].recompute = true;
    jobs[5].adam = false, jobs[5].clip = 0.1, jobs[5].stages = 4;
    if (precision == "amp") {
      jobs.push_back(jobs[3]);
      jobs.back().half = true;
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(precision + ", job " + std::to_string(i));
      jobs[i].stages = std::max(2, jobs[i].stages);
      const auto own = run(jobs[i]), plain = run(jobs[i].plain());
      EXPECT_EQ(difference(own, plain), 0);
      EXPECT_EQ(own.loss, plain.loss);
    }
  }
}

TEST(PrecisionMixes, ReplicasDifferByRoundings) {
  for (const auto& precision : kPrecisions) {
    std::vector<Job> jobs(5, Job{precision});
    jobs[0].sharded = jobs[0].recompute = true, jobs[0].clip = 0.5;
    jobs[1].accumulated = 3, jobs[1].no_sync = jobs[1].sharded = true, jobs[1].adam = false;
    jobs[2].accumulated = 2;
    jobs[3].to_none = false, jobs[3].clip = 0.5;  // gradients of fp16 stay float32
    jobs[4].stages = 4, jobs[4].sharded = jobs[4].evaluate = true;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(precision + ", job " + std::to_string(i));
      jobs[i].replicas = 2;
      EXPECT_LE(difference(run(jobs[i]), run(jobs[i].plain())), tolerance_of(precision));
    }
  }
}

TEST(PrecisionMixes, AJobThatIsCutGoesOnWithTheSameBits) {
  for (const auto& precision : kPrecisions) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(precision + (sharded ? ", sharded" : ", stages"));
      Job job{precision};
      job.stages = sharded ? 1 : 2;
      job.replicas = sharded ? 2 : 1;
      job.sharded = sharded;
      const auto half = run(job, 0, 3);
      EXPECT_EQ(difference(run(job, 3, kSteps, &half), run(job)), 0);
    }
  }
}

TEST(PrecisionMixes, AJobGoesOnInAnotherPrecisionInEachLayout) {
  for (const auto& before : kPrecisions) {
    const auto half = run({before}, 0, 3);
    for (const auto& after : kPrecisions) {
      if (after == before) continue;
      SCOPED_TRACE(before + " into " + after);
      auto from = half;
      from.scaler = {};
      Job job{after};
      const auto plain = run(job, 3, kSteps, &from);
      job.stages = job.replicas = 2;
      job.sharded = true;
      EXPECT_LE(difference(run(job, 3, kSteps, &from), plain), tolerance_of(after));
    }
  }
}

}  // namespace precision_mixes_test
}  // namespace smp
