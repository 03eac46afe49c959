// perf/precision/counts.cpp: counters of channels, and a look at each cast.
#include "precision/counts.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <string>

#include "api/rank/rank.h"
#include "base/check.h"
#include "precision/ways.h"
#include "smp/smp.h"
#include "support/weight_casts.h"

namespace smp::perf::precision_program {
namespace {

using at::Tensor;

constexpr int kTurns = 4;  // microbatches

/// Bytes that all stages send in the second step.
double bytes_of_chain(const Way& way) {
  constexpr int kStages = 4, kWidth = 64;
  double bytes = 0;
  const auto body = [&] {
    torch::manual_seed(1);
    nn::Sequential net;
    for (int stage = 0; stage < kStages; ++stage) net->push_back(nn::Linear(kWidth, kWidth));
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int stage = 0; stage < kStages; ++stage) {
      model.set_partition(std::to_string(stage), stage);
    }
    auto train = smp::step([&](const Tensor& x) {
      model.backward(model(x.to(way.type)).to(at::kFloat).square().mean());
    });
    const auto batch = at::randn({kTurns * 8, kWidth});
    train(batch);
    barrier();
    const auto sent = [] { return Rank::current().channel().counters().tensor_bytes_sent; };
    const auto before = sent();
    train(batch);
    barrier();
    bytes += static_cast<double>(sent() - before);
  };
  run_local(kStages, body, config_of(way, kTurns), {.seed = 1});
  return bytes;
}

// ---- casts -------------------------------------------------------------------------------------

constexpr std::int64_t kSize = 96;  // of a weight, and of nothing else

}  // namespace

void report_bytes(Report& report) {
  const double narrow = bytes_of_chain(kMasters), wide = bytes_of_chain(kFp32);
  report.add("bytes.bf16_over_fp32", narrow / wide, "1",
             base::concat(narrow / 1e3, " kB and ", wide / 1e3,
                          " kB of tensors in a step of four stages"));
}

void report_casts(Report& report) {
  constexpr int kSteps = 3, kWeights = 6;
  int counted = 0;
  const auto body = [&] {
    torch::manual_seed(1);
    nn::Sequential net;
    for (int i = 0; i < kWeights; ++i) net->push_back(nn::Linear(kSize, kSize));
    DistributedModel model(net);
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 1e-3));
    auto train = smp::step(
        [&](const Tensor& x) { model.backward(model(x).to(at::kFloat).square().mean()); });
    const support::WeightCasts casts(kSize);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      train(at::ones({kTurns * 4, kSize}));
      optimizer.step();
    }
    counted = casts.count();
  };
  run_local(1, body, config_of(kAmp, kTurns), {.seed = 1});
  report.add("casts.per_weight_and_step", static_cast<double>(counted) / (kWeights * kSteps), "1",
             base::concat(kWeights, " weights, ", kTurns, " microbatches"));
}

}  // namespace smp::perf::precision_program
