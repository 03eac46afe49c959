// simulate/step_state.h: where a simulated step stands: its fibers, its stages, and what comes
// next. The parts of the simulator (bodies, fiber_runner, host_cores, simulator) work on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "schedule/hold_rule.h"
#include "schedule/phase.h"
#include "schedule/step_progress.h"
#include "schedule/step_trace.h"
#include "schedule/yield_policy.h"
#include "simulate/event_queue.h"
#include "simulate/gradient_sums.h"
#include "simulate/machine.h"
#include "simulate/ready_queue.h"
#include "simulate/simulator.h"
#include "simulate/step_program.h"

namespace smp::simulate {

/// The run of one task for one microbatch. Forward and backward of a request, and the second part
/// of a backward, are fibers of their own in the runtime, but never at the same time.
struct SimulatedFiber {
  int task = 0;
  int microbatch = 0;
  std::int64_t priority = 0;        ///< as schedule/yield_policy.h orders fibers
  int operation = -1;               ///< next; -1: at the end
  int next_in_inbox = -1;           ///< of its stage
  std::int64_t parked_bytes = 0;    ///< live until it goes on: in its caller, and what came
  std::int64_t arriving_bytes = 0;  ///< of the message that is on its way to it
  int holder = -1;                  ///< stage that holds these until they are read; -1: not counted
  base::Nanoseconds passing = 0;    ///< how long its bytes occupy a port of the network
  schedule::Phase phase = schedule::Phase::kForward;  ///< forward, backward, weight gradients
  bool unpacks = false;                               ///< its message costs time when it goes on
  bool awaiting = false;                              ///< the answer of a peer
  bool gave_way = false;                              ///< in its turn, which is not over
  bool newborn = false;                               ///< a body that never ran
  bool enters = false;                ///< a request that comes to its stage for the first time
  bool begins = false;                ///< a phase of a request, of which nothing has run
  base::Nanoseconds held_since = -1;  ///< for what stands before it in its stage's list; -1: not

  bool is_forward() const noexcept { return phase == schedule::Phase::kForward; }
  bool is_weights() const noexcept { return phase == schedule::Phase::kWeightGradient; }

  /// Sets the priority by the schedule; whether the fiber passes an answer on stays as it is.
  void set_priority(std::int64_t of_schedule) noexcept {
    priority = schedule::is_passing_on(priority) ? schedule::passing_on(of_schedule) : of_schedule;
  }
};

/// What a rank's thread computes.
struct SimulatedWork {
  int fiber = -1;               ///< -1: nothing
  base::Nanoseconds since = 0;  ///< when it began
  base::Nanoseconds work = 0;   ///< how long it takes on a core of its own
};

/// The wait of a fiber that gave way: so long the rank waits for answers.
struct AnswerWait {
  base::Nanoseconds from = 0;
  base::Nanoseconds until = 0;
  bool paid_off = false;

  schedule::YieldPolicy::Waited result() const noexcept {
    using enum schedule::YieldPolicy::Waited;
    if (until == from) return kNot;
    return paid_off ? kPaidOff : kInVain;
  }
};

/// The activations, gradients and messages of a rank.
class LiveBytes {
 public:
  /// Also keeps when they change.
  void record() noexcept { recorded_ = true; }
  /// Adds what becomes live, or (negative) is let go of.
  void add(std::int64_t bytes, base::Nanoseconds time) {
    now_ += bytes;
    if (bytes != 0) note(0, time);
  }
  /// Counts bytes that are live for a moment, while it computes.
  void need(std::int64_t bytes, base::Nanoseconds time) {
    if (bytes != 0) note(bytes, time);
  }

  std::int64_t peak() const noexcept { return peak_; }
  std::vector<LiveMoment>&& moments() && noexcept { return std::move(moments_); }

 private:
  void note(std::int64_t more, base::Nanoseconds time) {
    const auto most = now_ + more;
    peak_ = std::max(peak_, most);
    if (!recorded_) return;
    if (moments_.empty() || moments_.back().time != time) moments_.push_back({time, now_, most});
    moments_.back().bytes = now_;
    moments_.back().most = std::max(moments_.back().most, most);
  }

  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
  bool recorded_ = false;
  std::vector<LiveMoment> moments_;
};

/// What is told of a rank when the step is over.
struct StageTally {
  base::Nanoseconds busy = 0;
  base::Nanoseconds end = 0;            ///< of its last work
  base::Nanoseconds last_backward = 0;  ///< begin of the one that began last
  std::int64_t messages = 0;            ///< sent
  LiveBytes memory;
  std::vector<schedule::Span> spans;

  /// Notes that it has worked on the backward of `microbatch` since `since`.
  void began_backward(int microbatch, base::Nanoseconds since) {
    const auto index = static_cast<std::size_t>(microbatch);
    if (went_back_.size() <= index) went_back_.resize(index + 1);
    if (!went_back_[index]) last_backward = since;
    went_back_[index] = true;
  }

 private:
  std::vector<bool> went_back_;  // microbatches whose backward began here
};

/// The state of a rank's thread.
struct SimulatedStage {
  SimulatedWork running;
  int host = -1;                      ///< oversubscribed one that it is on; -1: has its own core
  base::Nanoseconds free_at = 0;      ///< end of handling messages
  base::Nanoseconds put_off_at = -1;  ///< moment in whose last round it will compute
  AnswerWait wait;
  schedule::YieldPolicy yield_policy;
  schedule::HoldRule hold_rule;
  std::vector<int> held;  ///< fibers that the stage holds back, to stay free for others
  int awaiting = 0;       ///< fibers that wait for an answer of a peer
  bool polls = false;     ///< before it looks for the next fiber
  int first_in_inbox = -1, last_in_inbox = -1;
  int first_unread = -1;  ///< in the inbox: it and those behind it came since the last poll
  ReadyQueue ready;
  std::vector<int> at_window;  ///< fibers whose microbatch may not enter yet
  StageTally tally;

  /// True if its thread computes or handles a message.
  bool is_busy(base::Nanoseconds now) const noexcept { return running.fiber >= 0 || free_at > now; }
};

struct StepState {
  /// The arguments are referred to, so they outlive this.
  StepState(const StepProgram& step_program, const Machine& step_machine,
            const SimulationOptions& step_options);

  const StepProgram& program;
  const Machine& machine;
  const SimulationOptions& options;
  std::vector<SimulatedFiber> fibers;  ///< by microbatch, by task
  std::vector<SimulatedStage> stages;
  GradientSums gradients;
  std::vector<schedule::StepProgress> progress;  ///< by stage
  EventQueue events;
  base::Nanoseconds now = 0;

  const Task& task_of(const SimulatedFiber& fiber) const noexcept {
    return program.tasks[fiber.task];
  }
  SimulatedStage& stage_of(const SimulatedFiber& fiber) noexcept {
    return stages[task_of(fiber).stage];
  }
  /// Returns the fiber that runs `task` of the same microbatch as `fiber`.
  int sibling(int fiber, int task) const noexcept { return fiber - fibers[fiber].task + task; }
  int body_of(int microbatch) const noexcept { return bodies_[microbatch]; }

  /// True if anything before `moment` is left to happen at the present time.
  bool more_happens_now(Moment moment) const noexcept;

  /// Puts the message that has come for `fiber` into the inbox of its stage.
  void put_in_inbox(int fiber);
  /// Does the work of a poll of the transport: the stage has all messages that came from then on,
  /// and fibers whose messages came become ready, or wait at the window of the stage.
  /// @param all  take all of them; else up to the first one that becomes ready
  void take_from_inbox(SimulatedStage& stage, bool all);
  /// Makes the fibers ready that the stage held back and need not hold any longer.
  void release_held(SimulatedStage& stage);
  /// Returns how long `fiber`, which is about to begin, may be held back from now on.
  base::Nanoseconds longest_hold(const SimulatedFiber& fiber) const;
  /// Removes and returns the fiber that goes on next. One must be ready.
  int take_ready(SimulatedStage& stage);

  /// Returns the priority of `fiber` by the schedule, in the phase in which it is.
  std::int64_t priority_of(const SimulatedFiber& fiber) const;
  /// True if the backward of `fiber` is in two parts.
  bool splits_backward(const SimulatedFiber& fiber) const;
  /// Notes that `fiber` has done all that it had to. Fibers that waited for that at its stage's
  /// window become ready.
  void end(const SimulatedFiber& fiber);
  /// Notes that the body of `microbatch` makes no further call: on stages that it did not come to
  /// it has ended.
  void end_elsewhere(int microbatch);

 private:
  static constexpr int kUntouched = -1;

  /// Lets the stage have what the messages hold that came since its last poll; until then their
  /// senders have it.
  void read_inbox(SimulatedStage& stage);
  LiveBytes& memory_of(int stage) { return stages[static_cast<std::size_t>(stage)].tally.memory; }
  int& left_of(int microbatch, int stage);
  void end_on(int stage, int microbatch);

  std::vector<int> bodies_;      // fibers, by microbatch
  std::vector<int> tasks_left_;  // of a microbatch on a stage
};

}  // namespace smp::simulate
