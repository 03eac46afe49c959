// perf/peers.cpp: our side of `./smp perf peers`. It trains a model whose weights and batches are
// closed formulas (perf/peers/models.py has the same ones), a few steps whenever it is its turn.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "models/gpt.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/smp.h"
#include "t5/t5.h"

namespace smp::perf::peers {
namespace {

using at::Tensor;
using Batch = std::pair<Tensor, Tensor>;  // inputs and labels

struct Options {
  std::string turns, workload, variant;
  int microbatches = 8, rows = 32, length = 64;
  double learning_rate = 0.1;
  bool tiny = false;
  double forward_ms = 10, backward_ms = 20;
};

struct Answer {
  std::vector<double> milliseconds, losses;
  std::vector<double> page_faults{};    ///< of all ranks, in each step
  std::vector<double> busiest_share{};  ///< of the processor time of all ranks, in each step
};

/// Of this process so far.
struct Used {
  double page_faults = 0;  ///< without those that read something from a disk
  double seconds = 0;      ///< of a processor
};

Used used() {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {static_cast<double>(usage.ru_minflt), seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

// ---- the formulas ------------------------------------------------------------------------------

constexpr int64_t kPrime = 65521, kByteTokens = 256, kFirstByte = 3;

/// Parameters sorted by name get whole numbers modulo a prime, so every implementation agrees on
/// each bit.
void fill(torch::nn::Module& net) {
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> parameters;
  for (const auto& entry : net.named_parameters()) parameters[entry.key()] = entry.value();
  int64_t index = 0;
  for (auto& [name, parameter] : parameters) {
    const auto k = at::arange(parameter.numel(), at::kLong);
    const auto whole = (k * k % kPrime * 40503 + k * 7919 + ++index * 977) % kPrime;
    const auto noise = whole.to(at::kDouble) / kPrime - 0.5;
    const bool matrix = parameter.dim() > 1;
    const double scale = matrix ? std::sqrt(3.0 / static_cast<double>(parameter.size(-1))) : 0.2;
    const double middle = !matrix && name.ends_with("weight") ? 1 : 0;
    parameter.copy_((noise * scale + middle).view_as(parameter));
  }
}

/// Sequences that count in steps of their own.
Tensor sequences(int64_t step, int64_t rows, int64_t length, int64_t vocabulary) {
  const auto row = (at::arange(rows, at::kLong) + step * rows).unsqueeze(1);
  return ((row * 37 + 11) + (row % 7 + 1) * at::arange(length, at::kLong)) % vocabulary;
}

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

using Turn = std::function<Answer(int steps)>;
using BatchOf = std::function<Batch(int64_t step)>;

/// In one process, with LibTorch alone.
template <class Net, class Loss>
Turn plain(const Options& options, Net net, Loss loss_of, const BatchOf& batch_of) {
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), options.learning_rate);
  const auto microbatches = options.microbatches;
  return [=, step = int64_t{0}](int steps) mutable {
    Answer answer;
    for (; steps > 0; --steps) {
      const auto [inputs, labels] = batch_of(step++);
      double sum = 0;
      const auto before = used();
      answer.milliseconds.push_back(microseconds([&] {
                                      optimizer->zero_grad();
                                      const auto x = inputs.chunk(microbatches),
                                                 y = labels.chunk(microbatches);
                                      for (std::size_t i = 0; i < x.size(); ++i) {
                                        const Tensor loss = loss_of(net, x[i], y[i]) / microbatches;
                                        loss.backward();
                                        sum += loss.template item<double>();
                                      }
                                      optimizer->step();
                                    }) /
                                    1000);
      answer.page_faults.push_back(used().page_faults - before.page_faults);
      answer.losses.push_back(sum);
    }
    return answer;
  };
}

Tensor own_rows(const Tensor& all) {
  return all.chunk(dp_size())[static_cast<std::size_t>(dp_rank())];
}

double sum_over(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0);
}

/// Of the step that began with `before`; all ranks call it.
void note_use(Answer& answer, const Used& before) {
  const auto after = used();
  const auto seconds = all_gather(after.seconds - before.seconds);
  answer.page_faults.push_back(sum_over(all_gather(after.page_faults - before.page_faults)));
  answer.busiest_share.push_back(*std::max_element(seconds.begin(), seconds.end()) /
                                 sum_over(seconds));
}

using Place = std::function<void(DistributedModelBase&)>;

template <class Net, class Loss>
Turn distributed(const Options& options, Net net, Loss loss_of, const BatchOf& batch_of,
                 const Place& place) {
  auto model = std::make_shared<DistributedModel<Net>>(net);
  if (place) place(*model);
  auto optimizer = std::make_shared<DistributedOptimizer<torch::optim::SGD>>(
      *model, torch::optim::SGD(net->parameters(), options.learning_rate));
  auto train = smp::step([=](const Tensor& inputs, const Tensor& labels) {
    auto loss = loss_of(*model, inputs, labels);
    model->backward(loss);
    return loss.detach();
  });
  return [=, step = int64_t{0}](int steps) mutable {
    Answer answer;
    for (; steps > 0; --steps) {
      const auto batch = batch_of(step++);
      const auto inputs = own_rows(batch.first), labels = own_rows(batch.second);
      double loss = 0;
      barrier();
      const auto before = used();
      answer.milliseconds.push_back(
          microseconds([&] {
            optimizer->zero_grad();
            loss = train(inputs, labels).reduce_mean().template item<double>();
            optimizer->step();
            barrier();
          }) /
          1000);
      note_use(answer, before);
      answer.losses.push_back(sum_over(all_gather(loss, Group::kDp)) / dp_size());
    }
    return answer;
  };
}

template <class Net, class Loss>
Turn training(const Options& options, Net net, Loss loss_of, const BatchOf& batch_of,
              const Place& by_hand) {
  fill(*net);
  if (options.variant == "one_process") return plain(options, net, loss_of, batch_of);
  const auto place = options.variant == "by_hand" ? by_hand : nullptr;
  return distributed(options, net, loss_of, batch_of, place);
}

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

/// Every rank waits for its line in a pipe of its own, without computing; rank 0 answers.
void take_turns(const std::string& folder, Turn turn) {
  std::ifstream turns(folder + "/turn." + std::to_string(rank()));
  std::ofstream answers;
  if (rank() == 0) answers.open(folder + "/answers");
  for (std::string line; std::getline(turns, line) && line != "end";) {
    const auto answer = turn(std::stoi(line.substr(line.find(' ') + 1)));
    if (rank() != 0) continue;
    answers << fmt::format(
                   "{{\"ms\": [{}], \"losses\": [{}], \"page_faults\": [{}], \"busiest_share\": "
                   "[{}]}}\n",
                   fmt::join(answer.milliseconds, ", "), fmt::join(answer.losses, ", "),
                   fmt::join(answer.page_faults, ", "), fmt::join(answer.busiest_share, ", "))
            << std::flush;
  }
}

void run(int argc, char** argv) {
  Options options;
  CLI::App app("Our side of smp perf peers, which starts it", "perf_peers");
  app.add_option("--turns", options.turns, "folder with the pipes")->required();
  app.add_option("--workload", options.workload)->check(CLI::IsMember({"gpt", "t5", "sleep"}));
  app.add_option("--variant", options.variant)
      ->check(CLI::IsMember({"planned", "by_hand", "replicas", "replicas_at_end", "one_process"}));
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
  config.overlapping_allreduce = options.variant != "replicas_at_end";
  in_session(argc, argv, config, [&] {
    const auto workload = options.workload;
    take_turns(options.turns, workload == "gpt"  ? gpt(options)
                              : workload == "t5" ? t5_small(options)
                                                 : sleeping(options));
  });
}

const Program program{"peers", run};

}  // namespace
}  // namespace smp::perf::peers
