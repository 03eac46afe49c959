// What a trace tells of other devices, and what the simulator makes of it.
#include "simulate/device_profile.h"

#include <gmock/gmock.h>

#include "simulate/simulate_chain.h"
#include "simulate/step_program.h"

namespace smp::simulate {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

/// Two modules of 1 ms and 3 ms, which take 2 ms and 1 ms on another device; backward is twice the
/// forward there, and on the traced one as the trace says.
TimedModel two_modules() {
  auto model = traced_chain({1e-3, 3e-3});
  std::vector<IntervalTimes> elsewhere(model.trace.num_intervals());
  elsewhere[Trace::index_of({1, false})] = {2e-3, 4e-3, 2e-3};
  elsewhere[Trace::index_of({2, false})] = {1e-3, 2e-3, 1e-3};
  model.trace.device = "slow";
  model.trace.profiles.push_back(profile_of(model.trace, "fast", elsewhere));
  return model;
}

TEST(DeviceProfile, IsOfTheSpeedOfTheWholeMicrobatch) {
  const auto model = two_modules();
  const auto& profile = model.trace.profiles[0];
  EXPECT_DOUBLE_EQ(profile.speed, (4e-3 * 3) / (3e-3 * 3));
  double sum = 0;
  for (const auto& times : profile.times) sum += times.forward + times.backward;
  EXPECT_NEAR(sum, 4e-3 * 3, 1e-15) << "as if the device were as fast as the traced one";
  EXPECT_EQ(model.trace.find_profile("slow"), nullptr);
}

TEST(DeviceProfile, AnUnknownBackwardIsByTheRatioThereToo) {
  auto model = traced_chain({1e-3});
  model.trace.backward_ratio = 5;
  model.trace.weight_share = 0.25;
  std::vector<IntervalTimes> elsewhere(model.trace.num_intervals());
  elsewhere[Trace::index_of({1, false})] = {2e-3, 0, 0};
  const auto profile = profile_of(model.trace, "fast", elsewhere);
  EXPECT_DOUBLE_EQ(profile.speed, 0.5);
  const auto& times = profile.times[Trace::index_of({1, false})];
  EXPECT_DOUBLE_EQ(times.backward, 5e-3);
  EXPECT_DOUBLE_EQ(times.weights, 1.25e-3);
}

TEST(DeviceProfile, EveryStageComputesInTheTimesOfItsDevice) {
  const auto model = two_modules();
  const auto busy = [&](std::vector<std::string> devices, std::vector<double> speeds) {
    auto machine = ideal_machine(2);
    machine.devices = std::move(devices);
    machine.speeds = std::move(speeds);
    take_device_speeds(machine, model.trace);
    return simulate_with(model, stage_each(model), machine, 0, {}).busy;
  };
  const auto near = [](double ms) { return DoubleNear(ms * 1e-3, 2e-9); };
  EXPECT_THAT(busy({"slow", "slow"}, {}), ElementsAre(near(3), near(9)));
  EXPECT_THAT(busy({"fast", "fast"}, {}), ElementsAre(near(6), near(3)));
  EXPECT_THAT(busy({"slow", "fast"}, {}), ElementsAre(near(3), near(3)));
  EXPECT_THAT(busy({"fast", "slow"}, {}), ElementsAre(near(6), near(9)));
  EXPECT_THAT(busy({"fast", "slow"}, {2, 3}), ElementsAre(near(3), near(3)))
      << "stage_speeds count on top";
}

TEST(DeviceProfile, ATraceWithoutOneChangesNoSpeed) {
  Machine machine;
  machine.stages = 2;
  machine.devices = {"fast", "slow"};
  take_device_speeds(machine, traced_chain({1e-3}).trace);
  EXPECT_EQ(machine.speed(0), 1);
  EXPECT_EQ(machine.speed(1), 1);
}

/// What the trace knows of the backward counts; the ratio is for the rest.
TEST(DeviceProfile, AKnownBackwardTakesThePlaceOfTheRatio) {
  auto model = traced_chain({1e-3, 1e-3});
  model.trace.calls[1].after.backward_seconds = 0.5e-3;
  model.trace.calls[1].after.weight_seconds = 0.1e-3;
  const auto program = compile(model.trace, {0, 0, 1}, ideal_machine(2));
  const auto& known = program.operations[program.tasks[0].first];
  EXPECT_EQ(known.backward, 500 * base::kMicrosecond);
  EXPECT_EQ(known.weights, 100 * base::kMicrosecond);
  const auto& by_ratio = program.operations[program.tasks[1].first];
  EXPECT_EQ(by_ratio.backward, 2 * base::kMillisecond);
  EXPECT_EQ(by_ratio.weights, 1 * base::kMillisecond);
}

}  // namespace
}  // namespace smp::simulate
