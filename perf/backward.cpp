// perf/backward.cpp: how many times longer than its forward does the backward of a sample's model
// take, and what do its operators say of that before it runs?
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/machine/device.h"
#include "harness.h"
#include "program.h"
#include "sample_cases.h"
#include "trial/operators/operator_watch.h"

namespace smp::perf::backward {
namespace {

constexpr std::int64_t kMicrobatches = 8;  // of the batch, of which one runs
constexpr int kWarmUp = 2, kRounds = 21;

template <class Case>
std::vector<Tensor> microbatch() {
  std::vector<Tensor> slices;
  for (const Tensor& whole : Case::draw()) slices.push_back(whole.chunk(kMicrobatches)[0]);
  return slices;
}

/// Seconds as the partitioner has them.
template <class Case, class Net>
simulate::IntervalTimes predict(Net& net, const std::vector<Tensor>& batch) {
  partitioning::OperatorMeter meter({&base::devices().front()});
  const partitioning::OperatorWatch watch(meter);
  static_cast<void>(Case::loss(net, batch));
  return meter.times().front();
}

template <class Case>
void measure(Report& report, const std::string& model) {
  at::manual_seed(1);
  auto net = Case::make();
  const auto batch = microbatch<Case>();
  const auto predicted = predict<Case>(net, batch);
  std::vector<double> forward, backward, ratio;
  for (int i = 0; i < kWarmUp + rounds(kRounds); ++i) {
    Tensor loss;
    const double there = microseconds([&] { loss = Case::loss(net, batch); });
    const double back = microseconds([&] { loss.backward(); });  // adds to the gradients before it
    if (i < kWarmUp) continue;
    forward.push_back(there);
    backward.push_back(back);
    ratio.push_back(back / there);
  }
  report.add(
      "ratio.predicted." + model, predicted.backward / predicted.forward, "1",
      "weights: " + std::to_string(predicted.weights / predicted.backward) + " of the backward");
  report.add("ratio.measured." + model, median(ratio), "1",
             "forward " + std::to_string(median(forward) / 1e3) + " ms, predicted " +
                 std::to_string(predicted.forward * 1e3) + "; backward " +
                 std::to_string(median(backward) / 1e3) + " ms, predicted " +
                 std::to_string(predicted.backward * 1e3));
}

void run(int argc, char** argv) {
  CLI::App app("Backward over forward: what operators say, and a clock", "smp perf backward");
  if (!parse_options(app, argc, argv)) return;
  at::set_num_threads(1);
  Report report("backward");
  measure<T5Case>(report, "t5");
  measure<GptCase>(report, "gpt");
  measure<UNetCase>(report, "unet");
  measure<RecommenderCase>(report, "recommender");
  report.finish();
}

const Program program{"backward", run};

}  // namespace
}  // namespace smp::perf::backward
