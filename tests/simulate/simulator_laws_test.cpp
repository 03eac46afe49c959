// Laws that hold in the simulated step of any model under any placement.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

/// A random model: any call may call further modules, used modules are called again.
TimedModel random_model() {
  TimedModel model;
  const int calls = *rc::gen::inRange(1, 30);
  for (int i = 0; i < calls; ++i) {
    // A caller that is still running: the last call or one of its callers.
    int caller = i - 1;
    while (caller >= 0 && *rc::gen::arbitrary<bool>()) caller = model.trace.calls[caller].caller;
    const double seconds = *rc::gen::inRange(0, 3000) * 1e-6;
    const bool again = *rc::gen::inRange(0, 4) == 0;
    if (again) {
      model.call_again(*rc::gen::inRange(0, model.modules), caller, seconds);
    } else {
      model.call(caller, seconds);
    }
    model.trace.calls.back().before.seconds = *rc::gen::inRange(0, 500) * 1e-6;
  }
  std::vector<bool> sequential;
  for (int m = 0; m < model.modules; ++m) sequential.push_back(*rc::gen::arbitrary<bool>());
  for (auto& call : model.trace.calls) call.sequential = sequential[call.module];
  model.trace.body_after.seconds = 1e-4;
  return model;
}

double seconds_of(const Trace& trace) {
  return std::accumulate(trace.calls.begin(), trace.calls.end(), trace.body_after.seconds,
                         [](double sum, const TracedCall& call) {
                           return sum + call.before.seconds + call.after.seconds;
                         });
}

TEST(SimulatorLaws, NoWorkIsLostWhateverTheModelAndThePlacement) {
  const bool holds = rc::check([] {
    const auto model = random_model();
    Machine machine;
    machine.stages = *rc::gen::inRange(1, 5);
    const auto stages = *rc::gen::container<std::vector<int>>(
        static_cast<std::size_t>(model.modules), rc::gen::inRange(0, machine.stages));
    const int microbatches = *rc::gen::inRange(1, 6);
    const auto step = simulate_with(model, stages, machine, *rc::gen::inRange(0, 4),
                                    {.microbatches = microbatches, .record = true});
    const double busy = std::accumulate(step.busy.begin(), step.busy.end(), 0.0);
    RC_ASSERT(std::abs(busy - 3 * microbatches * seconds_of(model.trace)) < 1e-5);
    RC_ASSERT(step.seconds + 1e-6 >= 3 * seconds_of(model.trace));
    for (int stage = 0; stage < machine.stages; ++stage) {
      const auto& trace = step.timeline[stage];
      RC_ASSERT(std::abs(static_cast<double>(trace.busy_wall()) / base::kSecond -
                         step.busy[stage]) < 1e-9);
      for (std::size_t i = 1; i < trace.spans.size(); ++i) {
        RC_ASSERT(trace.spans[i - 1].end <= trace.spans[i].start);
      }
    }
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::simulate
