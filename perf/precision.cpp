// perf/precision.cpp: what 16 bits cost and give. How long does an optimizer's step take over
// parameters of each kind, beside LibTorch's fused float32 kernel and Python's? What is sent and
// cast? And where does the same training end?
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "harness.h"
#include "models/llama.h"
#include "precision/counts.h"
#include "precision/ways.h"
#include "program.h"
#include "python_peer.h"
#include "smp/smp.h"

namespace smp::perf::precision_program {
namespace {

using at::Tensor;

const std::vector<Way> kWays = {kFp32, kAmp, kPlain, kByChance, kMasters};

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

/// Our optimizer over parameters of one way.
class Ours {
 public:
  explicit Ours(const Way& way) : net_(made(way)), model_(net_) {
    model_.place();
    optimizer_.emplace(model_, torch::optim::AdamW(net_->parameters(), 1e-3));
    for (auto& parameter : net_->parameters()) {
      parameter.mutable_grad() = at::full_like(parameter, 0.01);
    }
  }
  void step() { optimizer_->step(); }
  double value() const { return net_->parameters()[0].flatten()[0].item<double>(); }

 private:
  static nn::Sequential made(const Way& way) {
    const at::NoGradGuard no_grad;
    nn::Sequential net;
    for (std::int64_t i = 0; i < matrices(); ++i) {
      net->push_back(nn::Linear(torch::nn::LinearOptions(2048, 1024).bias(false)));
      net->parameters().back().fill_(0.01);
    }
    net->to(way.type);
    return net;
  }

  nn::Sequential net_;
  DistributedModel<nn::Sequential> model_;
  std::optional<DistributedOptimizer<torch::optim::AdamW>> optimizer_;
};

/// Steps ours and calls `peer`, which returns microseconds, by turns.
template <class Peer>
void compare(Report& report, const std::string& metric, Ours& ours, Peer&& peer) {
  const auto both = alternate(
      rounds(9), [&] { return microseconds([&] { ours.step(); }); }, peer);
  report.add(metric, both.ratio(), "1",
             base::concat(median(both.a) / 1e3, " ms and ", median(both.b) / 1e3, " ms, ",
                          2 * matrices(), " Mi parameters"));
}

void measure_steps(Report& report, const Way& way) {
  const auto body = [&] {
    Ours ours(way);
    Fused fused;
    compare(report, std::string("optimizer.") + way.name + "_over_fused_fp32", ours,
            [&] { return microseconds([&] { fused.step(); }); });
  };
  run_local(1, body, config_of(way, 1), {.seed = 1});
}

/// Ours over Python's AdamW(fused=True), both of float32.
void measure_over_python(Report& report, const std::string& python) {
  const auto peer = start_python_peer(
      python, {"perf/precision/torch_adamw.py", std::to_string(at::get_num_threads()),
               std::to_string(matrices())});
  if (peer == nullptr) return;
  const auto body = [&] {
    Ours ours(kFp32);
    compare(report, "optimizer.over_torch_python", ours, [&] { return 1e6 * peer->ask("step"); });
    const double own = ours.value(), theirs = peer->ask("value");
    SMP_REQUIRE(std::abs(own - theirs) <= 1e-6 * std::abs(theirs), "after the same steps ours has ",
                own, ", Python's ", theirs);
  };
  run_local(1, body, config_of(kFp32, 1), {.seed = 1});
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
  explicit ScorerImpl(const models::LlamaConfig& config = {})
      : llama(register_module("llama", models::Llama(config))) {}
  Tensor forward(const Tensor& tokens) { return llama->scores(tokens); }
  models::Llama llama;
};
SMP_MODULE(Scorer);

struct Training {
  double loss = 0;  ///< mean of the last tenth
  double step_us = 0;
};

struct TrainingOptions {
  int steps = training_steps();
  bool wide_sums = true;
  models::LlamaConfig net = {};
};

Training train(const Way& way, const TrainingOptions& options = {}) {
  Training result;
  auto config = config_of(way, kMicrobatches);
  config.fp32_grad_accumulation = options.wide_sums;
  const auto body = [&] {
    torch::manual_seed(1);
    Scorer net(options.net);
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
    for (int step = 0; step < options.steps; ++step) {
      const double way_gone = static_cast<double>(step) / options.steps;
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
  report.add("training.bf16_plain.plain_sums.loss_over_fp32",
             train(kPlain, {.wide_sums = false}).loss / reference, "1",
             "gradients of microbatches added in bfloat16");
}

/// A step of a Llama whose products are large enough to be worth a cast.
void measure_amp(Report& report) {
  TrainingOptions options{.steps = brief() ? 1 : 3};
  if (!brief()) {
    options.net.hidden_size = 512;
    options.net.intermediate_size = 1408;
    options.net.num_hidden_layers = 4;
    options.net.head_dim = 128;
  }
  const auto both = alternate(
      rounds(5), [&] { return train(kAmp, options).step_us; },
      [&] { return train(kFp32, options).step_us; });
  report.add("step.amp_over_fp32", both.ratio(), "1",
             base::concat(median(both.a) / 1e3, " ms and ", median(both.b) / 1e3,
                          " ms, a Llama of width ", options.net.hidden_size));
}

void run(int argc, char** argv) {
  CLI::App app(
      "Parameters of 16 bits: an optimizer's step, what is sent and cast, where training ends",
      "smp perf precision");
  std::string only, python = offered_python();
  app.add_option("--only", only, "one part; the rows of the others stay")
      ->check(CLI::IsMember({"optimizer", "counts", "training"}));
  app.add_option("--python", python, "a Python with torch, for the row of its AdamW(fused=True)");
  if (!parse_options(app, argc, argv)) return;
  at::set_num_threads(1);
  Report report("precision", only.empty() ? Report::Earlier::kDropped : Report::Earlier::kKept);
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("optimizer")) {
    for (const auto& way : kWays) {
      if (way.name != std::string(kAmp.name)) measure_steps(report, way);  // which steps as fp32
    }
    measure_over_python(report, python);
  }
  if (wanted("counts")) {
    report_bytes(report);
    report_casts(report);
  }
  if (wanted("training")) {
    measure_amp(report);
    measure_training(report);
  }
  report.finish();
}

const Program program{"precision", run};

}  // namespace
}  // namespace smp::perf::precision_program
