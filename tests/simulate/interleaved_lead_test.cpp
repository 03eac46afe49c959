// What the lead of forwards is worth under "interleaved" (schedule/schedule.cpp).
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

TEST(InterleavedLead, ShortensStepsOfRanksWithSeveralStages) {
  const auto steps = compare(std::vector<double>(kModules, 0.0025), round_robin());
  EXPECT_LT(steps.with.seconds, 0.985 * steps.without.seconds);
  EXPECT_LE(steps.with.peak, steps.without.peak);
}

TEST(InterleavedLead, ShortensStepsWhoseFirstStageIsSlow) {
  std::vector<double> modules(kModules, 0.0025);
  std::fill_n(modules.begin(), 4, 0.00375);
  const auto steps = compare(modules, contiguous());
  EXPECT_LT(steps.with.seconds, 0.95 * steps.without.seconds);
  EXPECT_LE(steps.with.peak, steps.without.peak);
}

TEST(InterleavedLead, ChangesNothingInAChainOfEqualStages) {
  const auto steps = compare(std::vector<double>(kModules, 0.0025), contiguous());
  EXPECT_NEAR(steps.with.seconds, steps.without.seconds, 0.001 * steps.without.seconds);
  EXPECT_EQ(steps.with.peak, steps.without.peak);
}

}  // namespace
}  // namespace smp::simulate::interleaved_lead
