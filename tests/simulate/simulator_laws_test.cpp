// Laws that hold in the simulated step of any model under any placement.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

#include "simulate/random_timed_model.h"
#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

double seconds_of(const Trace& trace) {
  return std::accumulate(trace.calls.begin(), trace.calls.end(), trace.body_after.seconds,
                         [](double sum, const TracedCall& call) {
                           return sum + call.before.seconds + call.after.seconds;
                         });
}

TEST(SimulatorLaws, NoWorkIsLostWhateverTheModelAndThePlacement) {
  const bool holds = rc::check([] {
    const auto model = random_timed_model();
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
