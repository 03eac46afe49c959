// perf/peers.cpp: our side of `./smp perf peers`. It trains a model whose weights and batches are
// closed formulas (perf/peers/models.py has the same ones), a few steps whenever it is its turn.
#include <torch/nn/functional/loss.h>

#include <CLI/CLI.hpp>
#include <string>

#include "models/gpt.h"
#include "peers/turns.h"
#include "program.h"
#include "sleeping_stages.h"
#include "t5/t5.h"

namespace smp::perf::peers {
namespace {

constexpr int64_t kByteTokens = 256, kFirstByte = 3;

models::GptConfig gpt_config(const Options& options) {
  const int64_t length = options.length + 1;
  if (options.tiny) {
    return {.vocabulary = 64, .length = length, .width = 32, .heads = 2, .layers = 8};
  }
  return {.vocabulary = 256, .length = length, .width = 256, .heads = 8, .layers = 8};
}

t5::T5Config t5_config(const Options& options) {
  auto config = t5::T5Config::preset(options.tiny ? "tiny" : "demo");
  config.num_layers = config.num_decoder_layers = 4;
  return config;
}

// ---- workloads: each answers a turn of `steps` steps -------------------------------------------

Turn gpt(const Options& options) {
  const auto config = gpt_config(options);
  const auto batch_of = [options, config](int64_t step) {
    const auto tokens = sequences(step, options.rows, config.length, config.vocabulary);
    return Batch(tokens, tokens);
  };
  const auto equal_parts = [config](DistributedModelBase& model) {
    model.set_partition("", 0);
    for (int64_t i = 0; i < config.layers; ++i) {
      model.set_partition("transformer.h." + std::to_string(i),
                          static_cast<int>(i * size() / config.layers));
    }
    model.set_partition("transformer.ln_f", size() - 1);
    model.set_partition("lm_head", size() - 1);
  };
  const auto loss_of = [](auto& net, const Tensor& tokens, const Tensor&) { return net(tokens); };
  return training(options, models::Gpt(config), loss_of, batch_of, equal_parts);
}

Turn t5_small(const Options& options) {
  const auto config = t5_config(options);
  const auto batch_of = [options](int64_t step) {
    const auto bytes = sequences(step, options.rows, options.length, kByteTokens) + kFirstByte;
    return Batch(bytes, bytes.flip(1));
  };
  const auto loss_of = [](auto& net, const Tensor& inputs, const Tensor& labels) {
    return torch::nn::functional::cross_entropy(net(inputs, labels).flatten(0, 1),
                                                labels.flatten());
  };
  const auto apart = [](DistributedModelBase& model) {
    model.set_partition("", 0);
    model.set_partition("decoder", size() - 1);
  };
  return training(options, t5::T5(config), loss_of, batch_of, apart);
}

Turn sleeping(const Options& options) {
  const auto ranks = static_cast<std::size_t>(size());
  const StageTimes times{std::vector<double>(ranks, options.forward_ms),
                         std::vector<double>(ranks, options.backward_ms)};
  return [=, microbatches = options.microbatches](int steps) {
    constexpr int kPlacedAndRecorded = 2;  // each turn is a model of its own
    Answer answer;
    for (const auto& step : run_sleeping_steps(times, microbatches, kPlacedAndRecorded + steps)) {
      answer.milliseconds.push_back(step.milliseconds);
      answer.losses.push_back(0);
    }
    answer.milliseconds.erase(answer.milliseconds.begin(),
                              answer.milliseconds.begin() + kPlacedAndRecorded);
    return answer;
  };
}

// ---- turns -------------------------------------------------------------------------------------

void run(int argc, char** argv) {
  Options options;
  CLI::App app("Our side of smp perf peers, which starts it", "perf_peers");
  app.add_option("--turns", options.turns, "folder with the pipes")->required();
  app.add_option("--workload", options.workload)
      ->check(CLI::IsMember({"gpt", "t5", "llama", "sleep"}));
  app.add_option("--variant", options.variant)
      ->check(CLI::IsMember({"planned", "by_hand", "replicas", "replicas_at_end", "one_process",
                             "sliced", "sliced_along_sequence"}));
  app.add_option("--ranks", options.ranks, "of the job");
  app.add_option("--microbatches", options.microbatches);
  app.add_option("--rows", options.rows, "of a batch");
  app.add_option("--length", options.length, "of a sequence");
  app.add_option("--learning-rate", options.learning_rate);
  app.add_flag("--tiny", options.tiny, "models that only show that it works");
  app.add_option("--forward-ms", options.forward_ms);
  app.add_option("--backward-ms", options.backward_ms);
  if (!parse_options(app, argc, argv)) return;
  Config config{.microbatches = options.microbatches, .plan_cache = "off", .intra_op_threads = 1};
  if (options.variant.starts_with("replicas")) config.pipeline_parallel_degree = 1;
  if (options.variant.starts_with("sliced")) {
    config.pipeline_parallel_degree = 1;
    config.tensor_parallel_degree = options.ranks;
    config.prescaled_batch = true;
    config.optimize = options.variant == "sliced" ? "speed" : "sequence";
  }
  config.overlapping_allreduce = options.variant != "replicas_at_end";
  in_session(argc, argv, config, [&] {
    const auto workload = options.workload;
    take_turns(options.turns, workload == "gpt"     ? gpt(options)
                              : workload == "t5"    ? t5_small(options)
                              : workload == "llama" ? llama(options)
                                                    : sleeping(options));
  });
}

const Program program{"peers", run};

}  // namespace
}  // namespace smp::perf::peers
