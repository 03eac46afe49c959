// server/execution_scope.h: who says what is running: one execution of a module, or of the body,
// for one microbatch (paper §4.2), and the calls inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/random.h"
#include "fiber/scheduler.h"
#include "schedule/phase.h"
#include "server/deferred_statistics.h"
#include "server/gradient_accumulator.h"
#include "server/ids.h"
#include "server/message.h"
#include "server/module_table.h"
#include "server/span_recorder.h"

namespace smp::server {

class CallScope;

/// What the executions of a rank share.
struct ScopeServices {
  ScopeServices(GlobalRank of, const base::Clock& clock) : rank(of), recorder(clock) {}

  const GlobalRank rank;  ///< for messages
  ModuleTable modules;
  SpanRecorder recorder;
  DeferredStatistics statistics;
};

/// What an execution is.
struct ExecutionIdentity {
  ModuleId module = kBody;
  std::int32_t microbatch = -1;
  schedule::Phase phase = schedule::Phase::kForward;
  bool after_first_backward = false;  ///< its gradients follow the body's first backward
  ExecutionId execution;              ///< in the gradient accumulator
};

/// Lives on the stack of the fiber that runs it. Threads: the rank's.
class ExecutionScope final : public fiber::Activity {
 public:
  /// @param position  where its calls stand in the program: for a request, that of the call which
  ///                  it answers
  /// @param base_key  of random numbers: seed, step and microbatch
  ExecutionScope(ScopeServices& services, const ExecutionIdentity& identity, CallPosition position,
                 std::uint64_t base_key);
  ~ExecutionScope();
  ExecutionScope(const ExecutionScope&) = delete;
  ExecutionScope& operator=(const ExecutionScope&) = delete;

  /// Of the running fiber, or nullptr.
  static ExecutionScope* current() noexcept;

  const ExecutionIdentity& identity() const noexcept { return identity_; }
  void set_phase(schedule::Phase phase);
  void set_after_first_backward() noexcept { identity_.after_first_backward = true; }

  /// Where the next call stands; `calls` of the program are made by it.
  [[nodiscard]] CallPosition next_call(std::uint32_t calls);
  /// How often StepAborted was thrown at this execution, this time included.
  int count_aborted_call() noexcept { return ++aborted_calls_; }

  // fiber::Activity
  void on_switch(bool running) noexcept override;
  void describe(char* text, std::size_t size) const noexcept override;

 private:
  friend class CallScope;

  ScopeServices& services_;
  ExecutionIdentity identity_;
  const OrderKey caller_;              // of the calls made at the top of this execution
  const std::uint64_t caller_random_;  // hash of it
  const std::uint64_t base_key_;
  std::uint32_t calls_;             // ordinal of the next one at the top
  CallScope* innermost_ = nullptr;  // the call that runs, if one does
  int aborted_calls_ = 0;
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

  /// Of the calls that this one makes.
  [[nodiscard]] OrderKey key() const;

 private:
  friend class ExecutionScope;

  ExecutionScope& execution_;
  CallScope* const outer_;
  const std::uint32_t ordinal_;    // within the caller
  const std::uint64_t order_key_;  // hash of key()
  std::uint32_t calls_ = 0;        // made so far
  std::optional<base::RandomScope> random_;
  std::optional<DeferredStatistics::Execution> statistics_;
};

/// While it lives, random numbers are those of the step body itself.
[[nodiscard]] std::uint64_t random_key_of_body(std::uint64_t base_key) noexcept;

}  // namespace smp::server
