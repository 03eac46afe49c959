// What tests of static and fast mode share: the four ways in which steps can run, and a training
// whose control flow may change in every microbatch.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "server/replay/recorded_steps.h"
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
  config.fast_mode = mode != Mode::kStatic;
  return config;
}

/// Steps so far, on rank 0.
inline std::uint64_t replayed() { return Rank::current().server().core().counters.replayed; }

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

constexpr int kPieces = 5;
constexpr int kMicrobatches = 8;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (auto& piece : pieces) {
      piece = register_module("p" + std::to_string(&piece - pieces.data()), Piece());
    }
  }
  std::array<Piece, kPieces> pieces;
};
TORCH_MODULE(Net);

/// kMicrobatches rows.
Tensor plain_batch(int step);

/// What one training does.
struct Program {
  std::function<Tensor(NetImpl& net, Tensor x, int step, int microbatch)> way;
  std::function<Tensor(int step)> batch = plain_batch;
};

/// One piece after the other.
extern const Program kStraight;
/// Whom it calls, how often, with how many rows of which dtype, and what it uses: another one in
/// every step and microbatch.
extern const Program kByChance;

struct Trained {
  std::map<std::string, Tensor> parameters;
  std::vector<double> losses;
  std::uint64_t replayed = 0;                   // steps
  std::vector<std::uint64_t> control_messages;  // of all ranks, by step

  /// In the steps from `first` on.
  std::uint64_t control_messages_from(int first) const;
};

/// Piece i lives on rank i modulo `ranks`, the body on rank 0.
Trained train(Mode mode, int ranks, int steps, const Program& program, std::uint64_t seed = 1,
              const char* pipeline = "interleaved");

void expect_same_bits(const Trained& one, const Trained& other);

/// Of this rank, so far.
std::uint64_t control_messages();

/// Control messages of all ranks in each of the replayed steps, which only evaluate, on 3 ranks. No
/// request follows with which rank 1 could be told that its result was passed on.
std::vector<std::uint64_t> messages_of_evaluations(Mode mode, const char* pipeline);

}  // namespace static_mode_test
}  // namespace smp
