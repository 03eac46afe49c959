// server/step/server_core.h: the parts of one rank that the call router, the request runner,
// failure control and the step engine work on together.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "server/admission/waiting_list.h"
#include "server/admission/work_times.h"
#include "server/modules/buffer_copies.h"
#include "server/modules/foreign_parameters.h"
#include "server/modules/module_table.h"
#include "server/protocol/pipeline_port.h"
#include "server/running/execution_scope.h"
#include "server/running/span_recorder.h"
#include "server/running/turn_taker.h"
#include "server/step/server_options.h"
#include "server/step/step_state.h"
#include "server/step/worker_pool.h"
#include "server/sums/gradient_accumulator.h"
#include "server/sums/parameter_numbers.h"

namespace smp::server {

/// The parts that all components of one rank's server share. Threads: the rank's.
struct ServerCore {
  ServerCore(d2d::Channel& channel, std::vector<GlobalRank> stages, const ServerOptions& with,
             WorkerPool::Run run);

  const ServerOptions options;
  const base::SteadyClock clock;
  PipelinePort port;
  ScopeServices scopes;
  ForeignParameters foreign;
  BufferCopies copies;
  ParameterNumbers parameters;
  GradientAccumulator accumulator;
  TurnTaker turns;
  WorkTimes times{clock};
  WaitingList waiting{clock};  ///< of the running step: its admission's
  ServerCounters counters;
  std::unique_ptr<StepState> step;  ///< nullptr between steps
  /// The user's fiber, which serves during a step.
  struct Server {
    fiber::Event wake;
    bool waits_for_workers = false;  ///< the step could end, but for workers that still run
  } server;
  WorkerPool workers;  ///< last, so that its fibers end first

  /// True while a step runs that has not failed.
  bool in_good_step() const noexcept { return step != nullptr && !step->failed(); }
  fiber::Priority priority(schedule::Phase phase, int microbatch) const {
    return step->progress.priority(phase, microbatch);
  }
  /// Nothing of `microbatch` is left, here and elsewhere.
  void end_microbatch(int microbatch);
  /// Of the random numbers of one microbatch, in this step of this session.
  std::uint64_t random_key(int microbatch) const noexcept;
  /// The key of the random numbers that hooks of `leaf`, which has a gradient here, draw.
  std::uint64_t random_key_of_hooks(int microbatch, const at::Tensor& leaf);
};

/// The options of the backward passes of a step.
inline BackwardOptions pass_options(bool keep_graph, ServerCore& core) noexcept {
  BackwardOptions options;
  options.keep_graph = keep_graph;
  options.turns = &core.turns;
  return options;
}

}  // namespace smp::server
