// simulate/simulator.cpp: takes events in order of time and lets the stages' threads act on them.
// No allocation once the heaps have grown.
#include "simulate/simulator.h"

#include <utility>

#include "base/check.h"
#include "simulate/bodies.h"
#include "simulate/fiber_runner.h"
#include "simulate/host_cores.h"
#include "simulate/network.h"
#include "simulate/step_program.h"
#include "simulate/step_state.h"

namespace smp::simulate {
namespace {

class Simulator {
 public:
  Simulator(const StepProgram& program, const Machine& machine, const SimulationOptions& options)
      : step_(program, machine, options),
        bodies_(step_),
        cores_(step_),
        network_(step_),
        runner_(step_, bodies_, cores_, network_) {}

  SimulatedStep run() {
    bodies_.start();
    dispatch(0, false);
    while (!step_.events.empty()) handle(step_.events.take());
    SMP_ASSERT(bodies_.all_finished(), "schedule ", step_.options.schedule->name(), " ends ",
               bodies_.finished(), " of ", step_.options.microbatches, " microbatches");
    return result();
  }

 private:
  void handle(const Event& event);
  void dispatch(int index, bool at_last);
  bool put_off(int index);
  bool computes_next(int fiber) const;
  SimulatedStep result();

  StepState step_;
  Bodies bodies_;
  HostCores cores_;
  Network network_;
  FiberRunner runner_;
};

void Simulator::handle(const Event& event) {
  if (cores_.is_void(event)) return;
  step_.now = event.time;
  if (event.moment < Moment::kArrival) return network_.proceed(event);
  if (event.moment == Moment::kCompute) step_.stages[event.stage].put_off_at = -1;
  if (event.moment != Moment::kArrival) {
    return dispatch(event.stage, event.moment == Moment::kCompute);
  }
  event.fiber < 0 ? runner_.finish_computing(event.stage) : step_.put_in_inbox(event.fiber);
  const auto& stage = step_.stages[event.stage];
  if (stage.is_busy(step_.now)) return;
  if (step_.more_happens_now(Moment::kDispatch)) {
    step_.events.post(step_.now, Moment::kDispatch, event.stage);
  } else {
    dispatch(event.stage, false);
  }
}

/// Runs fibers of a stage until one computes or none can.
/// @param at_last  true if no other stage acts at this moment any more
void Simulator::dispatch(int index, bool at_last) {
  auto& stage = step_.stages[index];
  while (!stage.is_busy(step_.now)) {
    const bool all = at_last || step_.now <= stage.wait.until;
    if (std::exchange(stage.polls, false) || all || stage.ready.empty()) {
      step_.take_from_inbox(stage, all);
    }
    step_.release_held(stage);
    if (stage.ready.empty()) return;
    const int next = stage.ready.first();
    if (step_.fibers[next].gave_way && step_.now < stage.wait.until) return;
    if (computes_next(next) && !at_last && put_off(index)) return;
    if (!step_.fibers[next].gave_way && step_.now > stage.wait.from) stage.wait.paid_off = true;
    runner_.proceed(step_.take_ready(stage));
  }
}

/// Returns true if the stage computes only in the last round of this moment, since other stages act
/// before that. Messages that they send it meanwhile do not bring it forward.
bool Simulator::put_off(int index) {
  auto& stage = step_.stages[index];
  if (stage.put_off_at == step_.now) return true;
  if (!step_.more_happens_now(Moment::kCompute)) return false;
  stage.put_off_at = step_.now;
  step_.events.post(step_.now, Moment::kCompute, index);
  return true;
}

bool Simulator::computes_next(int fiber) const {
  const int operation = step_.fibers[fiber].operation;
  return operation >= 0 && step_.program.operations[operation].callee < 0;
}

SimulatedStep Simulator::result() {
  SimulatedStep step;
  step.seconds = static_cast<double>(step_.now) / base::kSecond;
  double busy = 0;
  for (std::size_t i = 0; i < step_.stages.size(); ++i) {
    auto& stage = step_.stages[i];
    step.busy.push_back(static_cast<double>(stage.tally.busy) / base::kSecond);
    busy += step.busy.back();
    step.ends.push_back(static_cast<double>(stage.tally.end) / base::kSecond);
    step.last_backwards.push_back(static_cast<double>(stage.tally.last_backward) / base::kSecond);
    step.peak_activations.push_back(stage.tally.memory.peak());
    step.messages.push_back(stage.tally.messages);
    if (!step_.options.record) continue;
    step.live.push_back(std::move(stage.tally.memory).moments());
    const bool oversubscribed = stage.host >= 0;
    step.timeline.push_back(
        {static_cast<int>(i), 0, 0, step_.now, oversubscribed, std::move(stage.tally.spans), {}});
  }
  if (step_.now > 0) step.bubble = 1 - busy / (step_.machine.stages * step.seconds);
  return step;
}

}  // namespace

SimulatedStep simulate(const Trace& trace, const std::vector<int>& stages, const Machine& machine,
                       const SimulationOptions& options) {
  SMP_ASSERT(options.schedule != nullptr && options.microbatches >= 1, options.microbatches,
             " microbatches");
  const auto program = compile(trace, stages, machine);
  return Simulator(program, machine, options).run();
}

}  // namespace smp::simulate
