// Simulated steps of small models, for tests.
#pragma once

#include <memory>
#include <vector>

#include "simulate/simulator.h"
#include "simulate/timed_model.h"

namespace smp::simulate {

inline std::unique_ptr<schedule::Schedule> schedule_with(int cap) {
  return cap == 0 ? schedule::make_simple() : schedule::make_interleaved(cap);
}

/// As ideal_machine(), where every result goes to its caller.
inline Machine relaying_machine(int stages) {
  auto machine = ideal_machine(stages);
  machine.promised_outputs = false;
  return machine;
}

/// One step under simple (cap 0) or interleaved.
inline SimulatedStep simulate_with(const TimedModel& model, const std::vector<int>& stages,
                                   const Machine& machine, int cap, SimulationOptions options) {
  const auto schedule = schedule_with(cap);
  options.schedule = schedule.get();
  return simulate(model.trace, stages, machine, options);
}

inline SimulatedStep simulate_chain(const std::vector<double>& seconds, int cap,
                                    const SimulationOptions& options, double backward_ratio = 2) {
  auto model = traced_chain(seconds);
  model.trace.backward_ratio = backward_ratio;
  const auto machine = ideal_machine(static_cast<int>(seconds.size()));
  return simulate_with(model, stage_each(model), machine, cap, options);
}

}  // namespace smp::simulate
