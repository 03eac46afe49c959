// samples/t5/main.cpp: trains a T5 on text over pipeline ranks; `./smp demo` runs it.
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "corpus.h"
#include "options.h"
#include "recipe.h"
#include "report.h"
#include "t5.h"

namespace t5 {
namespace {

constexpr int64_t kCheckedSteps = 3;
/// With Adam's moments 5 GB: a larger model is not trained in one process only to be compared.
constexpr int64_t kMostCheckedParameters = 300'000'000;

smp::Config library_settings(const Options& options) {
  smp::Config settings;
  settings.microbatches = options.microbatches;
  settings.pipeline = options.schedule;
  settings.seed = options.seed;
  return settings;
}

void check_ranks(const Options& options) {
  if (!options.ranks || *options.ranks == smp::size()) return;
  throw std::invalid_argument(format(
      "--ranks %d, but the number of ranks is %d. ./smp demo starts as many as --ranks says; "
      "mpirun takes -n",
      *options.ranks, smp::size()));
}

/// Only rank 0 feeds the model, so only it reads the text; the others hear if that fails.
std::optional<Corpus> read_text(const Options& options) {
  std::optional<Corpus> corpus;
  std::string problem;
  if (smp::rank() == 0) {
    try {
      corpus = Corpus::read(options.data, options.corruption);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = smp::broadcast(problem);
  if (!problem.empty()) throw std::invalid_argument(problem);
  return corpus;
}

/// The whole model is too big for a rank: each gives values to its own part only.
T5 build(const Options& options) {
  torch::manual_seed(options.seed);
  const smp::delay_param_initialization delay;
  return T5(options.config);
}

int64_t num_parameters(const T5& net) {
  int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  return count;
}

/// The first steps as rank 0 computes them alone, for all ranks to compare with; none of a large
/// model.
EqualityCheck reference(const Options& options, const Corpus* corpus) {
  std::vector<StepResult> steps;
  const bool small = num_parameters(build(options)) <= kMostCheckedParameters;
  if (corpus && small && !smp::is_planning()) {
    steps = train_in_one_process(options, *corpus, std::min(kCheckedSteps, options.steps));
  }
  return EqualityCheck(smp::broadcast(steps));
}

void train(const Options& options, const Corpus* corpus) {
  EqualityCheck check = reference(options, corpus);

  T5 net = build(options);
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, make_optimizer(net));

  auto run_step = smp::step([&](const Tensor& input_ids, const Tensor& labels) {
    auto [loss, byte_loss] = losses(model(input_ids, labels), labels);
    model.backward(loss);
    return std::make_tuple(loss, byte_loss);
  });

  Report report(options, corpus, model, std::move(check));
  for (int64_t step = 0; step < options.steps; ++step) {
    const Batch batch = corpus ? corpus->batch(options.seed, step, options.rows) : Batch();
    set_learning_rates(optimizer.param_groups(), step, options.steps);
    optimizer.zero_grad();
    const auto [loss, byte_loss] = run_step(batch.input_ids, batch.labels);
    const double gradient_norm = model.clip_grad_norm_(kMaxGradientNorm);
    optimizer.step();
    report.step(step, {loss.reduce_mean().item<double>(), byte_loss.reduce_mean().item<double>(),
                       gradient_norm});
  }
  report.finish();
}

void run(int argc, char** argv, const Options& options) {
  auto session = smp::init(argc, argv, library_settings(options));
  check_ranks(options);
  const auto corpus = read_text(options);
  train(options, corpus ? &*corpus : nullptr);
}

}  // namespace
}  // namespace t5

int main(int argc, char** argv) {
  try {
    const auto options = t5::parse_options(argc, argv);
    if (options) t5::run(argc, argv, *options);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
  return 0;
}
