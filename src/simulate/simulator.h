// simulate/simulator.h: one training step in virtual time: every rank's one thread, its fibers, and
// the messages between them, under the code of src/schedule/ that the module server runs too.
// Paper §4.1 to §4.3. Pure; no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "schedule/schedule.h"
#include "schedule/step_trace.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::simulate {

struct WeightGradients;  // simulate/gradient_sums.h

struct SimulationOptions {
  int microbatches = 1;
  const schedule::Schedule* schedule = nullptr;  ///< must be set; outlives the simulation
  bool forward_only = false;
  /// The standard deviation of every computation, as a share of it (0.1: ten percent).
  double jitter = 0;
  std::uint64_t seed = 0;
  /// True if the spans are kept, for a timeline, and what was live when.
  bool record = false;
  /// If set, the peaks are those of activations and of these gradients together, less all of these
  /// gradients: a stage has not got all of them yet when it holds most activations. Must outlive
  /// the simulation.
  const WeightGradients* gradients = nullptr;
};

/// What is live on a stage from one moment on.
struct LiveMoment {
  base::Nanoseconds time = 0;  ///< of virtual time
  std::int64_t bytes = 0;      ///< from then until the next moment
  std::int64_t most = 0;       ///< at the moment itself: the most of what it computes with
  bool operator==(const LiveMoment&) const = default;
};

struct SimulatedStep {
  double seconds = 0;        ///< from the first start to the last end
  std::vector<double> busy;  ///< by stage: seconds in modules, without handling of messages
  double bubble = 0;         ///< 1 - sum(busy) / (stages * seconds)
  /// The seconds by stage from the start until its last work was done, and until the backward of
  /// the last microbatch to come to it began; 0: none did.
  std::vector<double> ends, last_backwards;
  /// The most live bytes at once by stage: activations, gradients on their way, and messages.
  std::vector<std::int64_t> peak_activations;
  /// These bytes by stage as they change, if recorded: moments in order, none twice. Before the
  /// first one there are none.
  std::vector<std::vector<LiveMoment>> live;
  std::vector<std::int64_t> messages;         ///< sent by each stage
  std::vector<schedule::StepTrace> timeline;  ///< by stage, if recorded; ns of virtual time
};

/// Runs `microbatches` microbatches over the stages, as the traced ones went, in turns. The same
/// arguments always give the same step. Any thread.
/// @param stages  of every module of the model, by the trace's numbers; 0 to machine.stages - 1
/// @throws InternalError  no schedule, no microbatch, a call of a module that has no stage, or a
///                        schedule under which the step never ends
[[nodiscard]] SimulatedStep simulate(const Trace& trace, const std::vector<int>& stages,
                                     const Machine& machine, const SimulationOptions& options);

}  // namespace smp::simulate
