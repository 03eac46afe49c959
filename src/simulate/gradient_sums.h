// simulate/gradient_sums.h: the gradients of weights in a simulated step: which are there, and
// which wait for those of earlier microbatches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/step_program.h"

namespace smp::simulate {

/// The gradients of weights that stay until the optimizer's step. A step begins without them, and
/// the backward of the modules makes them.
struct WeightGradients {
  std::vector<std::int64_t> bytes;          ///< by weight
  std::vector<std::vector<int>> of_module;  ///< by module: the weights that its calls use
};

/// Gradients are summed in the order of microbatches, as the server does (server/sums): what a
/// microbatch gives to a weight before an earlier one has given its own is held beside the sum.
class GradientSums {
 public:
  /// @param gradients  nullptr: none are counted. All arguments must outlive this.
  GradientSums(const StepProgram& program, int microbatches, const WeightGradients* gradients);

  /// Returns the bytes of the gradients that a stage will have in the end, by its tasks.
  [[nodiscard]] std::vector<std::int64_t> expected(int stages) const;
  /// Notes that `operation` of a microbatch has gone back. @return by how many bytes what its stage
  /// holds has grown, which may be less than none
  std::int64_t made_by(int operation, int microbatch);

 private:
  struct Weight {
    std::vector<int> left;   // by microbatch: operations that have not given their part
    std::vector<char> held;  // by microbatch: it has given some
    int next = 0;            // microbatch that comes into the sum
    bool has_sum = false;
  };
  std::int64_t settle(int weight);

  const StepProgram& program_;
  const WeightGradients* const gradients_;
  const int microbatches_;
  std::vector<std::vector<int>> weights_of_;  // by operation, each once
  std::vector<Weight> weights_;
};

inline GradientSums::GradientSums(const StepProgram& program, int microbatches,
                                  const WeightGradients* gradients)
    : program_(program), gradients_(gradients), microbatches_(microbatches) {
  if (gradients == nullptr) return;
  weights_.resize(gradients->bytes.size());
  for (auto& weight : weights_) {
    weight.left.resize(static_cast<std::size_t>(microbatches));
    weight.held.resize(static_cast<std::size_t>(microbatches));
  }
  for (const auto& modules : program.modules) {
    auto& own = weights_of_.emplace_back();
    for (const int module : modules) {
      const auto& used = gradients->of_module.at(static_cast<std::size_t>(module));
      own.insert(own.end(), used.begin(), used.end());
    }
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    const auto traced = static_cast<std::size_t>(microbatch) % program.num_traced();
    for (int task = program.bodies[traced]; task < program.end_of(traced); ++task) {
      for (int i = program.tasks[task].first; i >= 0; i = program.operations[i].next) {
        for (const int weight : weights_of_[i]) ++weights_[weight].left[microbatch];
      }
    }
  }
}

inline std::vector<std::int64_t> GradientSums::expected(int stages) const {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(stages), 0);
  if (gradients_ == nullptr) return bytes;
  std::vector<bool> counted(weights_.size(), false);
  const auto traced = std::min(program_.num_traced(), static_cast<std::size_t>(microbatches_));
  const int end = traced == 0 ? 0 : program_.end_of(traced - 1);
  for (int task = 0; task < end; ++task) {
    for (int i = program_.tasks[task].first; i >= 0; i = program_.operations[i].next) {
      for (const int weight : weights_of_[i]) {
        if (counted[weight]) continue;
        counted[weight] = true;
        bytes[program_.tasks[task].stage] += gradients_->bytes[weight];
      }
    }
  }
  return bytes;
}

inline std::int64_t GradientSums::made_by(int operation, int microbatch) {
  if (gradients_ == nullptr) return 0;
  std::int64_t grown = 0;
  for (const int weight : weights_of_[operation]) {
    auto& own = weights_[weight];
    if (own.held[microbatch] == 0) {
      own.held[microbatch] = 1;
      grown += gradients_->bytes[weight];
    }
    if (--own.left[microbatch] == 0) grown += settle(weight);
  }
  return grown;
}

/// Adds what the next microbatches have given to the sum.
inline std::int64_t GradientSums::settle(int weight) {
  auto& own = weights_[weight];
  std::int64_t grown = 0;
  for (; own.next < microbatches_ && own.left[own.next] == 0; ++own.next) {
    if (own.held[own.next] == 0) continue;  // it does not use the weight
    if (own.has_sum) grown -= gradients_->bytes[weight];
    own.has_sum = true;
  }
  return grown;
}

}  // namespace smp::simulate
