// The lead of forwards under "interleaved" costs neither time nor memory, here where nothing is
// late; what it gains is measured (schedule/schedule.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulate/simulate_chain.h"

namespace smp::simulate::interleaved_lead {
namespace {

constexpr int kStages = 4;
constexpr int kMicrobatches = 4 * kStages;
constexpr int kActive = 2 * kStages + 2;  // the default
constexpr int kSteps = 60;

struct Outcome {
  double seconds = 0;     ///< mean of a step
  std::int64_t peak = 0;  ///< most live bytes of any stage, in any step
};

/// Steps of a chain whose last module returns the loss; computations vary by 2 %.
Outcome steps_of(const std::vector<double>& modules, const std::vector<int>& stages,
                 const schedule::Schedule& schedule) {
  auto model = with_loss(traced_chain(modules));
  Machine machine;
  machine.stages = kStages;
  Outcome outcome;
  for (int seed = 0; seed < kSteps; ++seed) {
    model.trace.backward_ratio = 1.5 + 0.13 * (seed % 7);
    const SimulationOptions options{.microbatches = kMicrobatches,
                                    .schedule = &schedule,
                                    .jitter = 0.02,
                                    .seed = static_cast<std::uint64_t>(seed)};
    const auto step = simulate(model.trace, stages, machine, options);
    outcome.seconds += step.seconds / kSteps;
    for (const auto bytes : step.peak_activations) outcome.peak = std::max(outcome.peak, bytes);
  }
  return outcome;
}

struct Compared {
  Outcome with, without;
};

Compared compare(const std::vector<double>& modules, const std::vector<int>& stages) {
  const auto with = schedule::make_schedule("interleaved", {kStages, kMicrobatches, kActive});
  const auto without = schedule::make_interleaved(kActive);
  return {steps_of(modules, stages, *with), steps_of(modules, stages, *without)};
}

constexpr int kModules = 4 * kStages;

/// The chain itself is on stage 0.
template <class StageOf>
std::vector<int> placed(const StageOf& stage_of) {
  std::vector<int> stages = {0};
  for (int module = 0; module < kModules; ++module) stages.push_back(stage_of(module));
  return stages;
}

std::vector<int> round_robin() {
  return placed([](int module) { return module % kStages; });
}
std::vector<int> contiguous() {
  return placed([](int module) { return module / 4; });
}

void expect_no_worse(const Compared& steps) {
  EXPECT_LE(steps.with.seconds, 1.003 * steps.without.seconds);
  EXPECT_LE(steps.with.peak, steps.without.peak);
}

TEST(InterleavedLead, CostsNothingWhereRanksHaveSeveralStages) {
  expect_no_worse(compare(std::vector<double>(kModules, 0.0025), round_robin()));
}

TEST(InterleavedLead, CostsNothingWhereTheFirstStageIsSlow) {
  std::vector<double> modules(kModules, 0.0025);
  std::fill_n(modules.begin(), 4, 0.00375);
  expect_no_worse(compare(modules, contiguous()));
}

TEST(InterleavedLead, CostsNothingInAChainOfEqualStages) {
  expect_no_worse(compare(std::vector<double>(kModules, 0.0025), contiguous()));
}

}  // namespace
}  // namespace smp::simulate::interleaved_lead
