// partition/simulator.h: one training step in virtual time: every rank's one thread, its fibers,
// and the messages between them, under the code of src/schedule/ that the module server runs too.
// Paper §4.1-4.3. Pure; no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/recorder.h"
#include "partition/machine.h"
#include "partition/module_tree.h"
#include "partition/trace.h"
#include "schedule/schedule.h"

namespace smp::partition {

struct SimulationOptions {
  int microbatches = 1;
  const schedule::Schedule* schedule = nullptr;
  bool forward_only = false;
  /// Standard deviation of every stretch of computation, as a share of it (0.1: ten percent).
  double jitter = 0;
  std::uint64_t seed = 0;
  /// Whether to keep the spans, for a timeline.
  bool record = false;
};

struct SimulatedStep {
  double seconds = 0;        ///< from the first start to the last end
  std::vector<double> busy;  ///< by stage: seconds in modules, without handling of messages
  double bubble = 0;         ///< 1 - sum(busy) / (stages * seconds)
  /// By stage: most bytes held at once of activations, gradients on their way, and messages.
  std::vector<std::int64_t> peak_activations;
  /// The same without the gradients of a computation while it runs.
  std::vector<std::int64_t> settled_activations;
  std::vector<std::int64_t> messages;     ///< sent by each stage
  std::vector<base::StepTrace> timeline;  ///< by stage, if recorded; nanoseconds of virtual time
};

/// Runs the traced microbatch `microbatches` times over the stages.
/// @param stages  of every module of the tree
SimulatedStep simulate(const ModuleTree& tree, const Trace& trace, const std::vector<int>& stages,
                       const Machine& machine, const SimulationOptions& options);

/// By stage: most bytes that `in_flight` microbatches can take together, however the messages run:
/// all of them at their own worst moment, one of them computing.
std::vector<std::int64_t> most_activations(const ModuleTree& tree, const Trace& trace,
                                           const std::vector<int>& stages, const Machine& machine,
                                           const SimulationOptions& options, int in_flight);

}  // namespace smp::partition
