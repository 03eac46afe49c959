// perf/harness/sleeping_stages.h: a chain of modules that sleep instead of computing. It
// shows what the runtime costs, also where ranks outnumber the cores.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "smp/config.h"

namespace smp::perf {

/// Milliseconds by module of a chain.
struct StageTimes {
  std::vector<double> forward, backward;
  double jitter = 0;        ///< deviation of each sleep, as a share of it; the same in every step
  double weight_share = 0;  ///< of the backward: for the weight, a sleep of its own

  double forward_of(std::size_t module, int microbatch) const;
  double backward_of(std::size_t module, int microbatch) const;
};

/// One sleep, in steady milliseconds.
struct Sleep {
  double start = 0, end = 0;
  bool backward = false;
};

struct SleepingStep {
  double milliseconds = 0;
  std::vector<std::vector<Sleep>> sleeps;  ///< by rank
  /// By rank, the most executions of modules at one time that have begun their forward and not
  /// ended their backward: with one module a rank, microbatches whose activations it keeps.
  std::vector<int> most_kept;
};

/// Calls `body` in a session of its own; a program may have one after another.
void in_session(int argc, char** argv, const Config& config, const std::function<void()>& body);

/// Who says where the modules live.
enum class Placed { kByHand, kByPlanner };

/// Runs steps on every rank, with the microbatches and the schedule of the running session.
/// @param placed   by hand: module i lives on rank i
/// @param warm_up  steps that come first and are not returned; the first of them places the model
/// @param when_placed  called on every rank after that one
std::vector<SleepingStep> run_sleeping_steps(const StageTimes& times, int microbatches, int steps,
                                             Placed placed = Placed::kByHand, int warm_up = 1,
                                             const std::function<void()>& when_placed = {});

/// Lengths of some sleeps.
std::vector<double> lengths(const std::vector<Sleep>& sleeps, bool backward);

}  // namespace smp::perf
