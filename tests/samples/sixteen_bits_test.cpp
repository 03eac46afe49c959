// The GPT and the T5 of the samples in each precision: schedules, recomputation and static mode
// change no bit of a training, nor do stages where no value is used by several of them. Else, and
// over replicas, sums are associated in another way. (That one rank does the arithmetic of plain
// LibTorch is shown of smaller models: tests/zoo/precision.h.)
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/gpt.h"
#include "samples/small_t5.h"
#include "smp/precision/grad_scaler.h"
#include "smp/smp.h"

namespace smp {
namespace sixteen_bits_test {

using at::Tensor;

constexpr int kSteps = 9;  // in static mode the last are replayed

struct Layout {
  const char* name;
  int stages = 1, replicas = 1;
  const char* schedule = "interleaved";
  const char* recomputed = "";
  bool static_mode = false, sharded = false;
};

/// A model, how its loss is computed, and on which of three stages its parts are.
template <class Net>
struct Program {
  std::function<Net()> make;
  std::function<Tensor(DistributedModel<Net>&, const Tensor& ids)> loss_of;
  std::map<std::string, int> places;
  const char* block;    ///< its type
  bool shares = false;  ///< whether modules on several stages use one value
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> values;
};

Config config_of(const std::string& precision, const Layout& layout, const char* block) {
  Config config;
  config.precision = precision;
  config.microbatches = 4 / layout.replicas;
  config.pipeline_parallel_degree = layout.stages;
  config.pipeline = layout.schedule;
  config.static_mode = layout.static_mode;
  config.shard_optimizer_state = layout.sharded;
  if (std::string(layout.recomputed) == "blocks") config.checkpoint_modules = block;
  config.skip_tracing = true;
  config.plan_cache = "off";
  return config;
}

template <class Net>
Trained train(const Program<Net>& program, const std::string& precision, const Layout& layout) {
  Trained trained;
  const auto rank_main = [&] {
    torch::manual_seed(3);
    Net net = program.make();
    net->to(at::kFloat);
    DistributedModel<Net> model(net);
    for (const auto& [path, stage] : program.places) {
      model.set_partition(path, stage * layout.stages / 3);
    }
    DistributedOptimizer optimizer(
        model, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
    GradScaler scaler({.init_scale = 256, .enabled = precision == "fp16"});
    auto step = smp::step([&](const Tensor& ids) {
      const auto loss = program.loss_of(model, ids);
      model.backward(scaler.scale(loss));
      return loss.detach();
    });
    for (int number = 0; number < kSteps; ++number) {
      const auto ids = (at::arange(8 * 6).reshape({8, 6}) * (3 + number % 2)) % 20 + 3;
      optimizer.zero_grad();
      const auto loss = step(ids.chunk(layout.replicas)[static_cast<std::size_t>(dp_rank())]);
      const auto mean = loss.reduce_mean().template item<double>();
      scaler.step(optimizer);
      scaler.update();
      if (rank() == 0) trained.losses.push_back(mean);
    }
    const auto values = model.state_dict(kAllPpRanks);
    if (rank() != 0) return;
    for (const auto& [name, value] : values) trained.values[name] = value.detach().clone();
  };
  run_local(layout.stages * layout.replicas, rank_main, config_of(precision, layout, program.block),
            {.seed = 2});
  return trained;
}

/// The largest difference of a value, over the largest of its tensor.
double difference(const Trained& one, const Trained& other) {
  double most = 0;
  for (const auto& [name, value] : one.values) {
    const auto wide = other.values.at(name).to(at::kDouble);
    const double scale = std::max(1e-2, wide.abs().max().item<double>());
    const double error = (value.to(at::kDouble) - wide).abs().max().item<double>() / scale;
    if (!(error <= most)) most = error;  // NaN too
  }
  return most;
}

const std::vector<Layout> kStages{
    {"two stages", 2},
    {"three stages, blocks recomputed", 3, 1, "1f1b", "blocks"},
    {"three stages, split backward", 3, 1, "zero_bubble"},
    {"two stages, replayed", 2, 1, "interleaved", "", true},
    {"two stages, replayed, blocks recomputed", 2, 1, "interleaved", "blocks", true}};
const std::vector<Layout> kReplicas{
    {"two replicas", 1, 2},
    {"two replicas of two stages, state in shards", 2, 2, "1f1b", "blocks", false, true}};

/// Of values, over the largest of a tensor, after these steps.
double tolerance_of(const std::string& precision) {
  return precision == "fp32" ? 2e-6 : precision == "amp" ? 2e-4 : precision == "fp16" ? 5e-3 : 0.05;
}

template <class Net>
void expect_one_training(const Program<Net>& program) {
  for (const std::string precision : {"fp32", "amp", "bf16", "bf16_sr", "fp16"}) {
    const auto plain = train(program, precision, {"one rank"});
    EXPECT_LT(plain.losses.back(), 0.95 * plain.losses.front()) << precision << ": it learns";
    const auto staged = program.shares ? train(program, precision, kStages[0]) : plain;
    EXPECT_LE(difference(staged, plain), tolerance_of(precision)) << precision;
    for (const auto& layout : kStages) {
      SCOPED_TRACE(precision + ", " + layout.name);
      const auto own = train(program, precision, layout);
      EXPECT_EQ(own.losses, staged.losses);
      EXPECT_EQ(difference(own, staged), 0);
    }
    for (const auto& layout : kReplicas) {
      SCOPED_TRACE(precision + ", " + layout.name);
      EXPECT_LE(difference(train(program, precision, layout), plain), tolerance_of(precision));
    }
  }
}

Program<models::Gpt> gpt(bool tied) {
  const models::GptConfig config{
      .vocabulary = 23, .length = 6, .width = 16, .heads = 2, .layers = 3, .tied = tied};
  return {[=] { return models::Gpt(config); },
          [](DistributedModel<models::Gpt>& model, const Tensor& ids) {
            return model(ids).to(at::kFloat);
          },
          {{"", 0}, {"transformer.h.1", 1}, {"transformer.h.2", 2}, {"transformer.ln_f", 2}},
          "Block"};
}

TEST(SixteenBits, OfAGpt) { expect_one_training(gpt(/*tied=*/false)); }

TEST(SixteenBits, OfAGptWhoseTableIsTied) { expect_one_training(gpt(/*tied=*/true)); }

TEST(SixteenBits, OfAT5) {
  auto config = t5::small_config();
  config.d_model = 16;
  expect_one_training<t5::T5>(
      {[=] { return t5::T5(config); },
       [](DistributedModel<t5::T5>& model, const Tensor& ids) {
         const auto labels = ids.flip(1);
         const auto logits = model(ids, labels);
         return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), labels.flatten());
       },
       {{"", 0}, {"encoder.block.1", 1}, {"decoder.block.0", 2}, {"decoder.block.1", 1}},
       "T5Block",
       /*shares=*/true});
}

}  // namespace sixteen_bits_test
}  // namespace smp
