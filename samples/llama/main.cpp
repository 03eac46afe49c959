// samples/llama/main.cpp: trains a Llama on packed text, and lets it write.
//
//     mpirun -n 4 llama --pp 2          # and 2 replicas
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "options.h"
#include "report.h"
#include "text.h"
#include "training.h"

namespace llama {
namespace {

/// A model that one process shall compute too must fit into it, with Adam's moments.
constexpr double kMostCheckedParameters = 3e8;

/// What is computed again, by type of module. A layer that is spread over ranks has its attention
/// inside, and is computed again as a whole.
std::string checkpointed_modules(const Options& options) {
  if (options.recompute == "none") return "";
  const bool attention_only = options.recompute == "attention" && options.layout.tp == 1;
  return attention_only ? "GroupedQueryAttention" : "DecoderLayer";
}

smp::Config library_settings(const Options& options) {
  smp::Config settings;
  if (options.layout.pp > 0) settings.pipeline_parallel_degree = options.layout.pp;
  settings.tensor_parallel_degree = options.layout.tp;
  settings.prescaled_batch = options.layout.tp > 1;
  settings.seed = options.recipe.seed;
  settings.stochastic_rounding = options.recipe.dtype == torch::kBFloat16;
  settings.checkpoint_modules = checkpointed_modules(options);
  return settings;
}

void check_ranks(const Options& options) {
  if (options.ranks && *options.ranks != smp::size()) {
    throw std::invalid_argument("--ranks " + std::to_string(*options.ranks) + ", but there are " +
                                std::to_string(smp::size()));
  }
  if (options.dp && *options.dp != smp::rdp_size()) {
    throw std::invalid_argument(
        "--dp " + std::to_string(*options.dp) + ", but " + std::to_string(smp::size()) +
        " ranks make " + std::to_string(smp::rdp_size()) + " replicas of " +
        std::to_string(smp::pp_size()) + " stages x " + std::to_string(smp::tp_size()));
  }
}

/// Steps that one process has, for all ranks to compare with. None where the library computes in 16
/// bits, of a large model, and of a job that goes on.
std::vector<StepNumbers> reference(const Options& options, const Text& text,
                                   const std::string& precision, bool resumed) {
  std::vector<StepNumbers> steps;
  const bool exact =
      options.recipe.dtype != torch::kBFloat16 && (precision.empty() || precision == "fp32");
  const bool comparable =
      exact && !resumed && smp::matrix_parameters(options.recipe.shape()) < kMostCheckedParameters;
  if (smp::rank() == 0 && comparable && !smp::is_planning()) {
    steps = train_in_one_process(options.recipe, text, std::min(options.check, options.steps));
  }
  return smp::broadcast(steps);
}

bool is_due(std::int64_t step, std::int64_t stride) { return stride > 0 && step % stride == 0; }

void train(const Options& options, const Text& text, const smp::Config& settings) {
  Trainer trainer(options.recipe, text);
  const bool resumed = !options.checkpoint.empty() && trainer.resume(options.checkpoint);
  if (resumed && smp::rank() == 0) {
    std::printf("resumes after step %ld of %s\n", trainer.steps(), options.checkpoint.c_str());
  }
  Report report(options, trainer, reference(options, text, settings.precision, resumed),
                settings.price_per_hour);
  while (trainer.steps() < options.steps) {
    report.step(trainer.step());
    const auto step = trainer.steps();
    if (!options.checkpoint.empty() &&
        (is_due(step, options.save_every) || step == options.steps)) {
      trainer.save(options.checkpoint);
    }
  }
  const auto held_out = trainer.held_out_loss();
  std::string written;
  if (options.generate > 0) written = trainer.continue_text(options.prompt, options.generate);
  report.finish(held_out, written);
}

void run(int argc, char** argv, const Options& options) {
  auto settings = library_settings(options);
  auto session = smp::init(argc, argv, settings);
  check_ranks(options);
  train(options, Text(options.text), session.config());
}

}  // namespace
}  // namespace llama

int main(int argc, char** argv) {
  try {
    const auto options = llama::parse_options(argc, argv);
    if (options) llama::run(argc, argv, *options);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
  return 0;
}
