// perf/modes/mode.cpp: see the header.
#include "modes/mode.h"

#include <ATen/ATen.h>

#include "smp/smp.h"

namespace smp::perf::modes {

Config config_of(Mode mode) {
  Config config;
  config.microbatches = kMicrobatches;
  config.promised_outputs = mode != Mode::kAwaited;
  config.static_mode = mode == Mode::kStatic || mode == Mode::kRelayedStatic;
  config.fast_mode = mode != Mode::kRelayedStatic;
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  return config;
}

double alone_us(const std::function<at::Tensor(at::Tensor)>& loss_of, const at::Tensor& batch,
                double* mean) {
  return microseconds([&] {
    double sum = 0;
    for (const auto& slice : batch.chunk(kMicrobatches)) {
      const auto loss = loss_of(slice) / kMicrobatches;
      loss.backward();
      sum += loss.item<double>();
    }
    if (mean != nullptr) *mean = sum;
  });
}

double sum_of_ranks(double own) {
  double sum = 0;
  for (const double one : all_gather(own)) sum += one;
  return sum;
}

}  // namespace smp::perf::modes
