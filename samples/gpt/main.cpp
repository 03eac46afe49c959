// samples/gpt/main.cpp: trains a GPT on text with any mix of pipeline, data and tensor parallelism,
// and lets it write.
//
//     mpirun -n 8 gpt --pp 2 --tp 2      # and 2 replicas
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "options.h"
#include "text.h"
#include "training.h"

namespace gpt {
namespace {

constexpr double kTolerance = 1e-4;      // float32, summed in another order
constexpr std::int64_t kLines = 20;      // of progress
constexpr const char* kRunFile = "run";  // in the folder of checkpoints, names that of the log

smp::Config library_settings(const Options& options) {
  smp::Config settings;
  settings.pipeline_parallel_degree = options.pp;
  settings.tensor_parallel_degree = options.tp;
  settings.microbatches = options.recipe.microbatches;
  settings.seed = options.recipe.seed;
  return settings;
}

void check_degrees(const Options& options) {
  if (!options.dp || *options.dp == smp::rdp_size()) return;
  throw std::invalid_argument("--pp " + std::to_string(options.pp) + " --tp " +
                              std::to_string(options.tp) + " --dp " + std::to_string(*options.dp) +
                              " take " + std::to_string(options.pp * options.tp * *options.dp) +
                              " ranks, but there are " + std::to_string(smp::size()));
}

void introduce(const Options& options, const Text& text) {
  const auto& config = options.recipe.model;
  std::printf("model   GPT \"%s\": %ld layers, width %ld, %ld heads\n", options.size.c_str(),
              config.layers, config.width, config.heads);
  std::printf("ranks   %d = %d stages x %d tensor-parallel x %d replicas\n", smp::size(),
              smp::pp_size(), smp::tp_size(), smp::rdp_size());
  std::printf("text    %s, %.1f MB; byte frequencies alone: %.2f nats a byte\n",
              options.data.c_str(), static_cast<double>(text.size_bytes()) / 1e6,
              text.unigram_entropy());
}

/// Starts from what options name. @return  whether that is where one process would start
bool start(Trainer& trainer, const Options& options) {
  if (!options.weights.empty()) {
    smp::hf::load(trainer.model(), options.weights, published_names());
  }
  const bool resumed = !options.checkpoint.empty() && trainer.resume(options.checkpoint);
  if (resumed && smp::rank() == 0) {
    std::printf("resumes after step %ld of %s\n", trainer.steps(), options.checkpoint.c_str());
  }
  return options.weights.empty() && !resumed;
}

/// Losses that one process has.
std::vector<double> reference(const Options& options, const Text& text) {
  std::vector<double> losses;
  if (smp::rank() == 0 && !smp::is_planning()) {
    const auto steps = std::min(options.check, options.steps);
    losses = train_in_one_process(options.recipe, text, steps, smp::device()).losses;
  }
  return smp::broadcast(losses);
}

void compare(const std::vector<double>& together, const std::vector<double>& alone) {
  double difference = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    difference = std::max(difference, std::abs(together[i] - alone[i]) / alone[i]);
  }
  if (smp::rank() == 0) {
    std::printf("check   losses of %zu steps equal those of one process; largest difference %.1e\n",
                alone.size(), difference);
  }
  if (!(difference < kTolerance)) throw std::runtime_error("the two trainings came apart");
}

bool saves_after(std::int64_t step, const Options& options) {
  const bool at_stride = options.save_every > 0 && step % options.save_every == 0;
  return !options.checkpoint.empty() && (at_stride || step == options.steps);
}

/// The folder in which the jobs before this one logged, if it is still there.
std::string log_before(const Options& options) {
  std::string folder;
  std::getline(std::ifstream(std::filesystem::path(options.checkpoint) / kRunFile), folder);
  return std::filesystem::exists(folder + "/run.json") ? folder : std::string();
}

void note_log(const Options& options, const std::string& folder) {
  std::filesystem::create_directories(options.checkpoint);
  std::ofstream(std::filesystem::path(options.checkpoint) / kRunFile)
      << std::filesystem::absolute(folder).string() << '\n';
}

void train(const Options& options, const Text& text) {
  Trainer trainer(options.recipe, text);
  const bool comparable = start(trainer, options);
  const auto alone = comparable ? reference(options, text) : std::vector<double>();
  smp::RunLogOptions of_log{.loss_unit = "nats per byte", .lines_before = trainer.steps()};
  if (trainer.steps() > 0) of_log.continues = log_before(options);
  smp::RunLog log("gpt", trainer.model(), of_log);
  if (smp::rank() == 0 && !options.checkpoint.empty()) note_log(options, log.folder());
  const auto stride = std::max<std::int64_t>(1, options.steps / kLines);
  std::vector<double> losses;
  while (trainer.steps() < options.steps) {
    losses.push_back(trainer.step());
    const auto timing = log.measure();
    log.append({{"loss", losses.back()}});
    if (!alone.empty() && losses.size() == alone.size()) compare(losses, alone);
    const auto step = trainer.steps();
    if (saves_after(step, options)) trainer.save(options.checkpoint);
    if (smp::rank() == 0 && (step % stride == 0 || step == options.steps)) {
      std::printf("step    %ld/%ld   loss %.3f   %.2f s\n", step, options.steps, losses.back(),
                  timing.seconds);
      std::fflush(stdout);
    }
  }
  if (options.generate > 0) {
    const auto written = trainer.generate(options.prompt, options.generate);
    if (smp::rank() == 0) {
      std::printf("writes  %s%s\n", options.prompt.c_str(), printable(written).c_str());
    }
  }
  log.finish();
  if (smp::rank() == 0) std::printf("wrote   %s\n", log.folder().c_str());
}

void run(int argc, char** argv, const Options& options) {
  auto session = smp::init(argc, argv, library_settings(options));
  check_degrees(options);
  const auto text = Text::read(options.data);
  if (smp::rank() == 0) introduce(options, text);
  train(options, text);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    const auto options = gpt::parse_options(argc, argv);
    if (options) gpt::run(argc, argv, *options);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
  return 0;
}
