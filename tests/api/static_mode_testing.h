// What tests of static and fast mode share: the four ways in which steps can run, and a module.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>

#include "api/runtime.h"
#include "server/recorded_steps.h"
#include "smp/smp.h"

namespace smp {
namespace static_mode_test {

using at::Tensor;

constexpr int kRecorded = server::RecordedSteps::kSteps;

enum class Mode { kRelayed, kPromised, kStatic, kFast };

inline Config config_of(Mode mode, int microbatches) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  config.promised_outputs = mode != Mode::kRelayed;
  config.static_mode = mode == Mode::kStatic || mode == Mode::kFast;
  config.fast_mode = mode == Mode::kFast;
  return config;
}

/// Steps so far, on rank 0.
inline std::uint64_t replayed() { return Runtime::current().server().core().counters.replayed; }

/// Takes either dtype and returns what it got; computes in float64.
struct PieceImpl : torch::nn::Module {
  PieceImpl() : linear(register_module("linear", torch::nn::Linear(3, 3))) {
    linear->to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    const auto y = linear(x.to(torch::kDouble)).tanh().to(x.scalar_type());
    return torch::dropout(y, 0.2, is_training()) + x;
  }
  torch::nn::Linear linear;
};
SMP_MODULE(Piece);

}  // namespace static_mode_test
}  // namespace smp
