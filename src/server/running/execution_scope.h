// server/running/execution_scope.h: who says what is running: one execution of a module, or of the
// body, for one microbatch (paper §4.2), and the calls inside it.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "fiber/scheduler.h"
#include "module/call_places.h"
#include "schedule/phase.h"
#include "schedule/work_order.h"
#include "server/modules/deferred_statistics.h"
#include "server/modules/module_table.h"
#include "server/modules/settings_board.h"
#include "server/protocol/ids.h"
#include "server/protocol/message.h"
#include "server/running/execution_settings.h"
#include "server/running/outgoing_calls.h"
#include "server/running/own_passes.h"
#include "server/running/row_writes.h"
#include "server/running/span_recorder.h"
#include "server/running/stopwatch.h"
#include "server/running/work_count.h"

namespace smp::server {

class CallScope;

/// The parts that all executions of a rank share.
struct ScopeServices {
  ScopeServices(GlobalRank of, const base::Clock& clock) : rank(of), recorder(clock) {}

  const GlobalRank rank;  ///< for messages
  ModuleTable modules;
  SpanRecorder recorder;
  DeferredStatistics statistics;
  SettingsBoard settings;
  bool one_at_a_time = false;  ///< microbatches run so in this step: statistics need no order
  /// The order of work on this rank in the step that runs; nullptr between steps.
  const schedule::WorkOrder* work = nullptr;
  std::uint64_t rows = 0;           ///< number of rows (ForwardRequest::row) given to executions
  OwnPasses* own_passes = nullptr;  ///< takes what passes of LibTorch's own engine give, if set
};

/// Identifies an execution: a module, or the body, for one microbatch and phase.
struct ExecutionIdentity {
  ModuleId module = kBody;
  std::int32_t microbatch = -1;
  schedule::Phase phase = schedule::Phase::kForward;
  bool after_first_backward = false;  ///< its gradients follow the body's first backward
  ExecutionId execution;              ///< in the gradient accumulator
};

/// What is counted of the calls at one level of a program: at the top of an execution, or inside a
/// call that runs here.
struct CallLevel {
  const std::uint64_t random_key;  ///< hash of the order key of the caller
  std::uint32_t calls = 0;         ///< ordinal of the next one
  std::uint32_t places = 0;        ///< taken by ExecutionScope::next_place_in_program()
};

/// An execution while it runs: which it is, and at which place of the program. Its parts hold the
/// rest. Lives on the stack of the fiber that runs it. Threads: the rank's.
class ExecutionScope final : public fiber::Activity {
 public:
  /// @param position  the position in the program of the first call at its top: for a request, that
  ///                  of the call which it answers
  /// @param base_key  the key of random numbers made of seed, step and microbatch
  /// @param replays   it runs again what has run: it collects no statistics and is not recorded
  ExecutionScope(ScopeServices& services, const ExecutionIdentity& identity, CallPosition position,
                 std::uint64_t base_key, bool replays = false);
  ~ExecutionScope();
  ExecutionScope(const ExecutionScope&) = delete;
  ExecutionScope& operator=(const ExecutionScope&) = delete;

  /// The innermost execution of the running fiber, or nullptr.
  static ExecutionScope* current() noexcept;

  const ExecutionIdentity& identity() const noexcept { return identity_; }
  ScopeServices& services() const noexcept { return services_; }
  bool replays() const noexcept { return replays_; }
  std::uint64_t base_key() const noexcept { return base_key_; }
  void set_phase(schedule::Phase phase);
  void set_after_first_backward() noexcept { identity_.after_first_backward = true; }

  /// Runs `code` of this execution and waits for the calls that it made. If it throws, one of these
  /// may have thrown before.
  void run(c10::function_ref<void()> code);

  // Its parts.

  OutgoingCalls& outgoing() noexcept { return outgoing_; }
  const OutgoingCalls& outgoing() const noexcept { return outgoing_; }
  ExecutionSettings& settings() noexcept { return settings_; }
  WorkCount& work() noexcept { return work_; }
  Stopwatch& stopwatch() noexcept { return stopwatch_; }

  // Where it stands in the program.

  /// True while a routed module that the execution has called runs on this rank, on the same stack.
  bool inside_call() const noexcept { return innermost_ != nullptr; }
  /// True if a call made now is made by a body itself. Only such calls are bracketed by
  /// ExecutionSettings::body_call_begins() and body_call_ends().
  [[nodiscard]] bool calls_from_body() const noexcept {
    return innermost_ == nullptr && identity_.module == kBody;
  }
  /// The position of the next call, without taking it.
  [[nodiscard]] CallPosition position();
  /// The position at which the innermost call on this rank began.
  [[nodiscard]] CallPosition position_of_call() const;
  /// True if it runs a call of a module that microbatches enter in order, one after another: what
  /// autograd saves now may be written by the next one before it is used.
  [[nodiscard]] bool saves_versions() const noexcept;
  /// True, while that is so, if `tensor` may be one that calls write in place: one without history,
  /// or a weight that was written in this step.
  [[nodiscard]] bool may_write_later(const at::Tensor& tensor) const noexcept;
  /// Takes the position of the next remote call, which stands for `calls` calls of the program:
  /// several if it is a joint call.
  [[nodiscard]] CallPosition next_call(std::uint32_t calls);
  /// Takes the place in the program of the next collective of the running call, or of the execution
  /// itself: the same on all ranks that run this program. Its step number is left 0.
  [[nodiscard]] module::CallPlace next_place_in_program() noexcept;
  /// The key of the random numbers that hooks draw while the backward of this record runs; nullopt
  /// for a body, whose own stream serves its backward too.
  [[nodiscard]] std::optional<std::uint64_t> random_key_of_hooks() const;

  /// Counts a throw of StepAborted at this execution, and returns how many there were.
  int count_aborted_call() noexcept { return ++aborted_calls_; }
  /// Collects what the batches so far add to the running statistics of the body's own layers.
  void collect_statistics();

  // fiber::Activity
  void on_switch(bool running) noexcept override;
  void describe(char* text, std::size_t size) const noexcept override;

 private:
  friend class CallScope;

  CallLevel& level() noexcept;
  const char* running_path() const noexcept;
  void publish() const noexcept;
  void watch_members() noexcept;
  void record(bool running) noexcept;

  ScopeServices& services_;
  ExecutionIdentity identity_;
  const OrderKey caller_;  // of the calls made at the top of this execution
  const std::uint64_t base_key_;
  const bool replays_;
  CallLevel top_;
  CallScope* innermost_ = nullptr;                           // the call that runs, if one does
  std::optional<DeferredStatistics::Execution> statistics_;  // of the body's own layers
  int aborted_calls_ = 0;
  WorkCount work_;
  OutgoingCalls outgoing_;
  ExecutionSettings settings_;
  Stopwatch stopwatch_;
  const SeesRowWrites sees_;
  fiber::Activity* outer_activity_;
  ExecutionScope* outer_scope_;
};

/// One call of a module that runs here: its place in the program, random numbers, running
/// statistics. Lives in CallHandler::Space.
class CallScope {
 public:
  CallScope(ExecutionScope& execution, ModuleId module);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// The order key of this call: the caller's part of the keys of the calls that it makes.
  [[nodiscard]] OrderKey key() const;
  const ModuleTable::Entry& entry() const noexcept { return entry_; }
  int microbatch() const noexcept { return execution_.identity_.microbatch; }
  bool replays() const noexcept { return execution_.replays_; }

  std::uint64_t buffer_versions = 0;  ///< returned by BufferWatch::begin_call()

 private:
  friend class ExecutionScope;

  /// Collects what the batches so far add to running statistics; it stands before call number
  /// `next` of those that this call makes.
  void collect_statistics(std::uint32_t next);
  void on_switch(bool running) noexcept;

  ExecutionScope& execution_;
  const ModuleTable::Entry& entry_;
  CallScope* const outer_;
  const std::uint32_t ordinal_;           // within the caller
  CallLevel level_;                       // of the calls that it makes
  const std::uint64_t number_;            // WorkCount::calls()
  const ModuleId module_;                 // for whoever looks on
  RoutedBase* called_by_body_ = nullptr;  // the module, if a body makes this call
  const int exceptions_ = std::uncaught_exceptions();
  std::optional<base::RandomScope> random_;
  std::optional<DeferredStatistics::Execution> statistics_;
};

/// The key of the random numbers that a body itself draws. @param base_key  that of its microbatch
[[nodiscard]] std::uint64_t random_key_of_body(std::uint64_t base_key) noexcept;

}  // namespace smp::server
