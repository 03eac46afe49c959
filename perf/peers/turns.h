// perf/peers/turns.h: our side of contests: a model whose weights and batches are closed formulas
// (perf/peers/models.py has the same ones) trains some steps whenever it is its turn.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "smp/smp.h"

namespace smp::perf::peers {

using at::Tensor;
using Batch = std::pair<Tensor, Tensor>;  // inputs and labels

struct Options {
  std::string turns, workload, variant;
  int ranks = 1, microbatches = 8, rows = 32, length = 64;
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

Used used();
/// Of the step that began with `before`; all ranks call it.
void note_use(Answer& answer, const Used& before);

/// Parameters sorted by name get whole numbers modulo a prime, so every implementation agrees on
/// each bit.
void fill(torch::nn::Module& net);
/// Sequences that count in steps of their own.
Tensor sequences(int64_t step, int64_t rows, int64_t length, int64_t vocabulary);
/// Of a batch, those that this rank trains on.
Tensor own_rows(const Tensor& all);
/// The mean over all ranks, each of which knows that of its own rows.
double mean_over_rows(double own);

using Turn = std::function<Answer(int steps)>;  ///< answers a turn of some steps
using BatchOf = std::function<Batch(int64_t step)>;

/// Every rank waits for its line in a pipe of its own, without computing; rank 0 answers.
void take_turns(const std::string& folder, Turn turn);
/// A Llama: plain, in stages, or with its layers spread.
Turn llama(const Options& options);

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
      answer.losses.push_back(mean_over_rows(loss));
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

}  // namespace smp::perf::peers
