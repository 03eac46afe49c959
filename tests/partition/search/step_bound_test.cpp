// No placement's simulated step is shorter than the bound: against all placements of small models.
#include "partition/search/step_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "partition/search/random_tree.h"
#include "partition/search/shortest_step.h"
#include "partition/search/tree_builder.h"
#include "schedule/schedule.h"
#include "simulate/device_profile.h"

namespace smp::partitioning {
namespace {

TEST(StepBound, IsBelowTheShortestOfAllPlacements) {
  int tight = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    const auto model = random_model(seed, {.modules = 5, .pinned_stages = seed % 5 == 0 ? 1 : 0});
    const auto costs = make_cost_tree(model.tree, model.trace, model.fixed, {});
    auto machine = simulate::ideal_machine(seed % 2 == 0 ? 3 : 2);
    if (seed % 3 == 0) machine.speeds = {1, 2, 1.5};
    if (seed % 7 == 0) machine.oversubscribed = {{{0, 1}, 1.5}};
    machine.speeds.resize(machine.speeds.empty() ? 0 : machine.stages);
    const int microbatches = 1 + static_cast<int>(seed % 5);
    const char* names[] = {"simple", "1f1b", "zero_bubble", "interleaved"};
    const auto schedule = schedule::make_schedule(
        names[seed % 4], {machine.stages, microbatches, machine.stages + 1});
    const StepSettings settings{microbatches, schedule.get(), 0};
    const StepJudge judge(model.tree, model.trace, costs, machine, settings);
    const double bound = step_lower_bound(model.trace, costs, machine, settings);
    const double shortest = shortest_step(judge, costs, machine.stages);
    EXPECT_LE(bound, shortest + 1e-7) << "seed " << seed << ", " << names[seed % 4];
    if (bound > 0.9 * shortest) ++tight;
  }
  EXPECT_GE(tight, 25) << "a bound that says little is of no use";
}

/// Of two kinds, of which each suits some modules better than others.
TEST(StepBound, HoldsForDevicesThatDiffer) {
  int tight = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    auto model = random_model(seed, {.modules = 5});
    auto& trace = model.trace;
    std::vector<simulate::IntervalTimes> times(trace.num_intervals());
    for (int call = -1; call < static_cast<int>(trace.calls.size()); ++call) {
      for (const bool before : {false, true}) {
        const simulate::IntervalId id{call, before && call >= 0};
        const double forward =
            trace.interval(id).seconds * (1 + static_cast<double>((seed + call) % 4)) / 2;
        times[simulate::Trace::index_of(id)] = {forward, 1.5 * forward, forward};
      }
    }
    trace.profiles.push_back(simulate::profile_of(trace, "other", times));
    auto machine = simulate::ideal_machine(2);
    machine.devices = {"traced", "other"};
    simulate::take_device_speeds(machine, trace);
    const auto costs = make_cost_tree(model.tree, trace, model.fixed, {});
    const auto schedule = schedule::make_schedule("1f1b", {2, 3, 3});
    const StepSettings settings{3, schedule.get(), 0};
    const StepJudge judge(model.tree, trace, costs, machine, settings);
    const double bound = step_lower_bound(trace, costs, machine, settings);
    const double shortest = shortest_step(judge, costs, 2);
    EXPECT_LE(bound, shortest + 1e-7) << "seed " << seed;
    if (bound > 0.6 * shortest) ++tight;
  }
  EXPECT_GE(tight, 10);
}

/// Two modules of a second each, one after the other, with a backward of two.
TEST(StepBound, CountsAllWorkAndWhatStagesWaitAtTheEnds) {
  TreeBuilder build;
  simulate::Trace trace;
  trace.calls.push_back({.module = 0});
  for (int i = 0; i < 2; ++i) {
    build.module(i == 0 ? "a" : "b", 4);
    trace.calls.push_back({.module = i + 1, .caller = 0, .after = {.seconds = 1}});
  }
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  const auto schedule = schedule::make_schedule("simple", {.pp_size = 2, .microbatches = 4});
  EXPECT_DOUBLE_EQ(
      step_lower_bound(trace, costs, simulate::ideal_machine(2), {4, schedule.get(), 0}),
      (2 * 4 * 3 + 3) / 2.0)
      << "the second waits for a forward and for a backward of the first; the step takes 15";
}

/// It can compute as soon as the first call comes.
TEST(StepBound, CountsAModuleThatIsCalledAgainFromItsFirstCall) {
  TreeBuilder build;
  build.module("a", 4);
  build.module("b", 4);
  simulate::Trace trace;
  trace.calls.push_back({.module = 0});
  for (const auto& [module, seconds] : {std::pair(1, .5), std::pair(2, 1.), std::pair(1, .5)}) {
    trace.calls.push_back({.module = module, .caller = 0, .after = {.seconds = seconds}});
  }
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  const auto schedule = schedule::make_schedule("simple", {.pp_size = 2, .microbatches = 4});
  EXPECT_DOUBLE_EQ(
      step_lower_bound(trace, costs, simulate::ideal_machine(2), {4, schedule.get(), 0}),
      (4 * 6 + 1.5) / 2.0);
}

}  // namespace
}  // namespace smp::partitioning
