// perf/precision.cpp: what 16 bits cost and give. How long does an optimizer's step take over
// parameters of each kind, beside LibTorch's fused float32 kernel? And where does the same training
// end?
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "harness.h"
#include "models/llama.h"
#include "program.h"
#include "smp/smp.h"

namespace smp::perf::precision_program {
namespace {

using at::Tensor;

/// One way to keep parameters.
struct Way {
  const char* name;
  const char* precision;  ///< the setting; "": the program casts
  at::ScalarType type;
};
const std::vector<Way> kWays = {{"fp32", "fp32", at::kFloat},
                                {"amp", "amp", at::kFloat},
                                {"bf16_plain", "", at::kBFloat16},
                                {"bf16_sr", "bf16_sr", at::kBFloat16},
                                {"master", "bf16", at::kBFloat16}};

Config config_of(const Way& way, int microbatches) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.precision = way.precision;
  return config;
}

// ---- the optimizer -----------------------------------------------------------------------------

std::int64_t matrices() { return brief() ? 1 : 24; }  // of 2 million elements

/// LibTorch's kernel, on float32 tensors of its own.
class Fused {
 public:
  Fused() {
    for (std::int64_t i = 0; i < matrices(); ++i) {
      for (auto* list : {&parameters_, &gradients_, &means_, &squares_}) {
        list->push_back(at::full({1024, 2048}, 0.01));
      }
      steps_.push_back(at::zeros({}));
    }
  }
  void step() {
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients_, means_, squares_, {}, steps_, 1e-3, 0.9, 0.999, 0.01,
                      1e-8, false, false);
  }

 private:
  std::vector<Tensor> parameters_, gradients_, means_, squares_, steps_;
};

void measure_steps(Report& report, const Way& way) {
  const auto body = [&] {
    const at::NoGradGuard no_grad;
    nn::Sequential net;
    for (std::int64_t i = 0; i < matrices(); ++i) {
      net->push_back(nn::Linear(torch::nn::LinearOptions(2048, 1024).bias(false)));
    }
    net->to(way.type);
    DistributedModel model(net);
    model.place();
    DistributedOptimizer optimizer(model, torch::optim::AdamW(net->parameters(), 1e-3));
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad() = at::full_like(parameter, 0.01);
    }
    Fused fused;
    const auto both = alternate(
        rounds(9), [&] { return microseconds([&] { optimizer.step(); }); },
        [&] { return microseconds([&] { fused.step(); }); });
    report.add(std::string("optimizer.") + way.name + "_over_fused_fp32", both.ratio(), "1",
               std::to_string(median(both.a) / 1e3) + " ms and " +
                   std::to_string(median(both.b) / 1e3) + " ms, " + std::to_string(2 * matrices()) +
                   " Mi parameters");
  };
  run_local(1, body, config_of(way, 1), {.seed = 1});
}

// ---- training ----------------------------------------------------------------------------------

constexpr int kMicrobatches = 4;
constexpr double kMostRate = 2e-3, kLeastRate = 1e-5;

int training_steps() { return brief() ? 4 : 600; }

/// Texts in which each token is followed by others with probabilities of its own.
class Texts {
 public:
  Texts() {
    torch::manual_seed(5);
    follow_ = torch::softmax(2 * torch::randn({64, 64}), -1);
  }
  Tensor draw(int number) const {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + number));
    auto token = torch::randint(64, {16});
    std::vector<Tensor> all{token};
    while (all.size() < 33) {
      token = torch::multinomial(follow_.index_select(0, token), 1).squeeze(1);
      all.push_back(token);
    }
    return torch::stack(all, 1);
  }

 private:
  Tensor follow_;
};

/// In float32, whatever the scores are.
template <class Net>
Tensor loss_of(Net& net, const Tensor& tokens) {
  const auto length = tokens.size(1) - 1;
  const auto scores = net(tokens.narrow(1, 0, length));
  return at::cross_entropy_loss(scores.to(at::kFloat).flatten(0, 1),
                                tokens.narrow(1, 1, length).flatten());
}

/// A Llama's scores as its call.
struct ScorerImpl : torch::nn::Module {
  models::Llama llama = register_module("llama", models::Llama());
  Tensor forward(const Tensor& tokens) { return llama->scores(tokens); }
};
SMP_MODULE(Scorer);

struct Training {
  double loss = 0;  ///< mean of the last tenth
  double step_us = 0;
};

Training train(const Way& way, bool wide_sums = true) {
  Training result;
  auto config = config_of(way, kMicrobatches);
  config.fp32_grad_accumulation = wide_sums;
  const auto body = [&] {
    torch::manual_seed(1);
    Scorer net;
    net->to(way.type);
    DistributedModel model(net);
    DistributedOptimizer optimizer(model, torch::optim::AdamW(net->parameters(), kMostRate));
    auto run = smp::step([&](const Tensor& tokens) {
      const auto loss = loss_of(model, tokens);
      model.backward(loss);
      return loss;
    });
    const Texts texts;
    std::vector<double> losses, times;
    for (int step = 0; step < training_steps(); ++step) {
      const double way_gone = static_cast<double>(step) / training_steps();
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
          .lr(kLeastRate + (kMostRate - kLeastRate) * (1 + std::cos(M_PI * way_gone)) / 2);
      const auto tokens = texts.draw(step);
      times.push_back(microseconds([&] {
        optimizer.zero_grad();
        losses.push_back(run(tokens).reduce_mean().template item<double>());
        optimizer.step();
      }));
    }
    const auto last = std::max<std::size_t>(1, losses.size() / 10);
    for (std::size_t i = losses.size() - last; i < losses.size(); ++i) {
      result.loss += losses[i] / static_cast<double>(last);
    }
    result.step_us = median(times);
  };
  run_local(1, body, config, {.seed = 1});
  return result;
}

void measure_training(Report& report) {
  double reference = 0;
  for (const auto& way : kWays) {
    const auto trained = train(way);
    if (reference == 0) reference = trained.loss;
    const std::string name = std::string("training.") + way.name;
    report.add(name + ".loss", trained.loss, "nats",
               "mean of the last " + std::to_string(training_steps() / 10) + " of " +
                   std::to_string(training_steps()) + " steps");
    report.add(name + ".loss_over_fp32", trained.loss / reference, "1");
    report.add(name + ".step", trained.step_us / 1e3, "ms");
  }
  const auto& plain = kWays[2];
  report.add("training.bf16_plain.plain_sums.loss_over_fp32", train(plain, false).loss / reference,
             "1", "gradients of microbatches added in bfloat16");
}

void run(int argc, char** argv) {
  CLI::App app("Parameters of 16 bits: an optimizer's step, and where training ends",
               "smp perf precision");
  std::string only;
  app.add_option("--only", only, "one part; the rows of the other stay")
      ->check(CLI::IsMember({"optimizer", "training"}));
  if (!parse_options(app, argc, argv)) return;
  at::set_num_threads(1);
  Report report("precision", only.empty() ? Report::Earlier::kDropped : Report::Earlier::kKept);
  for (const auto& way : kWays) {
    if (only == "training" || way.name == std::string("amp")) continue;  // which steps as fp32
    measure_steps(report, way);
  }
  if (only != "optimizer") measure_training(report);
  report.finish();
}

const Program program{"precision", run};

}  // namespace
}  // namespace smp::perf::precision_program
