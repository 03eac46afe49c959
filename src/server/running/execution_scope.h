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
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "fiber/scheduler.h"
#include "module/call_places.h"
#include "schedule/phase.h"
#include "server/modules/deferred_statistics.h"
#include "server/modules/module_table.h"
#include "server/modules/settings_board.h"
#include "server/protocol/ids.h"
#include "server/protocol/message.h"
#include "server/running/body_settings.h"
#include "server/running/call_way.h"
#include "server/running/open_call.h"
#include "server/running/span_recorder.h"

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
  std::uint64_t rows = 0;      ///< number of rows (ForwardRequest::row) given to executions
};

/// Identifies an execution: a module, or the body, for one microbatch and phase.
struct ExecutionIdentity {
  ModuleId module = kBody;
  std::int32_t microbatch = -1;
  schedule::Phase phase = schedule::Phase::kForward;
  bool after_first_backward = false;  ///< its gradients follow the body's first backward
  ExecutionId execution;              ///< in the gradient accumulator
};

/// An execution while it runs. Lives on the stack of the fiber that runs it. Threads: the rank's.
class ExecutionScope final : public fiber::Activity {
 public:
  /// @param position  the position in the program of the first call at its top: for a request, that
  ///                  of the call which it answers
  /// @param base_key  the key of random numbers made of seed, step and microbatch
  ExecutionScope(ScopeServices& services, const ExecutionIdentity& identity, CallPosition position,
                 std::uint64_t base_key);
  ~ExecutionScope();
  ExecutionScope(const ExecutionScope&) = delete;
  ExecutionScope& operator=(const ExecutionScope&) = delete;

  /// The innermost execution of the running fiber, or nullptr.
  static ExecutionScope* current() noexcept;
  /// Notes that user code has run although an OwnCodeOnly lives, so flags are read again.
  void note_user_code() noexcept { noted_ = false; }

  const ExecutionIdentity& identity() const noexcept { return identity_; }
  const ScopeServices& services() const noexcept { return services_; }
  /// True while a routed module that the execution has called runs on this rank, on the same stack.
  bool inside_call() const noexcept { return innermost_ != nullptr; }
  void set_phase(schedule::Phase phase);
  void set_after_first_backward() noexcept { identity_.after_first_backward = true; }

  /// Takes the position of the next remote call, which stands for `calls` calls of the program:
  /// several if it is a joint call.
  [[nodiscard]] CallPosition next_call(std::uint32_t calls);
  /// Takes the place in the program of the next collective of the running call, or of the execution
  /// itself: the same on all ranks that run this program. Its step number is left 0.
  [[nodiscard]] module::CallPlace next_place_in_program() noexcept;
  // Calls that returned before they ended.

  /// The row (ForwardRequest::row) of the requests that this execution makes from now on; never 0.
  std::uint64_t row() noexcept { return row_ == 0 ? row_ = ++services_.rows : row_; }
  /// Takes the place in that row of the next request to `owner`.
  std::uint32_t next_place(PpRank owner);
  /// Gives the place last taken for `owner` back, because the request could not be sent.
  void give_back_place(PpRank owner) noexcept { --places_[owner.index()]; }
  bool has_open_calls() const noexcept { return !open_calls_.empty(); }
  const std::vector<std::shared_ptr<OpenCall>>& open_calls() const noexcept { return open_calls_; }
  /// The number of calls so far: remote calls, local ones, and those of note_work().
  std::uint64_t num_calls() const noexcept { return num_calls_; }
  /// True if a call after the first `number` ones has left for another rank, or has ended here.
  bool has_worked_since(std::uint64_t number) const noexcept { return last_worked_ > number; }
  /// Notes that something was done which would have come later if calls were awaited; counts like a
  /// call.
  void note_work() noexcept { last_worked_ = ++num_calls_; }
  void add(std::shared_ptr<OpenCall> call) { open_calls_.push_back(std::move(call)); }
  /// The calls that left so far.
  CallWay& way() noexcept { return way_; }
  /// Runs `code` of this execution and waits for the calls that it made. If it throws, one of these
  /// may have thrown before.
  void run(c10::function_ref<void()> code);
  /// Suspends until all open calls have ended. @throws what the first of them in program order
  /// threw.
  void finish_calls();
  /// Suspends until all calls have ended and the values of all promised tensors that somebody still
  /// holds are here. Called when the execution ends, since it may return such tensors or leave them
  /// in members.
  void fetch_promises();

  // Settings: what the modules say while this runs.

  /// Sets the flags with which the execution begins, instead of those of the step's begin. Must be
  /// called before anything runs.
  void set_settings(const SettingsBoard::View& settings);
  /// Reads the flags of the modules as they are now, and returns them.
  const SettingsBoard::View& note_settings() noexcept;
  const SettingsBoard::View& settings() const noexcept { return settings_; }
  /// The key of the random numbers that hooks draw while the backward of this record runs; nullopt
  /// for a body, whose own stream serves its backward too.
  [[nodiscard]] std::optional<std::uint64_t> random_key_of_hooks() const;
  /// The flags that the body has switched, for the check at its end.
  const BodySettings& body_settings() const noexcept { return body_settings_; }
  /// True if a call made now is made by a body itself. Only such calls are bracketed by
  /// body_call_begins() and body_call_ends().
  [[nodiscard]] bool calls_from_body() const noexcept {
    return innermost_ == nullptr && identity_.module == kBody;
  }
  void body_call_begins(const RoutedBase& module);
  void body_call_ends(const RoutedBase& module) noexcept;

  /// Counts a throw of StepAborted at this execution, and returns how many there were.
  int count_aborted_call() noexcept { return ++aborted_calls_; }
  /// Tells the watchdog which module runs here: that of the innermost call.
  void publish() const noexcept;
  /// Collects what the batches so far add to the running statistics of the body's own layers.
  void collect_statistics();

  /// Starts to measure with `clock` for how long the execution has the thread; nullptr stops that.
  void measure(const base::Clock* clock) noexcept;
  /// The time for which it had the thread since measure(), in ns.
  base::Nanoseconds measured() const noexcept;

  // fiber::Activity
  void on_switch(bool running) noexcept override;
  void describe(char* text, std::size_t size) const noexcept override;

 private:
  friend class CallScope;
  friend class OwnCodeOnly;

  void watch_members() noexcept;
  void leave_settings() noexcept;
  void record(bool running) noexcept;

  ScopeServices& services_;
  ExecutionIdentity identity_;
  const OrderKey caller_;              // of the calls made at the top of this execution
  const std::uint64_t caller_random_;  // hash of it
  const std::uint64_t base_key_;
  std::uint32_t calls_;                                      // ordinal of the next one at the top
  CallScope* innermost_ = nullptr;                           // the call that runs, if one does
  std::optional<DeferredStatistics::Execution> statistics_;  // of the body's own layers
  int aborted_calls_ = 0;
  std::uint64_t num_calls_ = 0;
  std::uint64_t last_worked_ = 0;   // number of the latest call that left or has ended
  std::uint32_t places_taken_ = 0;  // of next_place_in_program(), at the top
  CallWay way_;
  std::uint64_t row_ = 0;
  std::vector<std::uint32_t> places_;  // next ones, by owner
  std::vector<std::shared_ptr<OpenCall>> open_calls_, finished_calls_;
  SettingsBoard::View settings_;
  const SettingsBoard::Subtree* part_ = nullptr;  // what it may change; nullptr: everything
  bool own_code_only_ = false;                    // OwnCodeOnly
  bool noted_ = false;                            // settings_, since that began
  BodySettings body_settings_;
  fiber::Activity* outer_activity_;
  ExecutionScope* outer_scope_;
  const base::Clock* stopwatch_ = nullptr;
  base::Nanoseconds measured_ = 0;  // up to when it last left the thread
  base::Nanoseconds since_ = 0;     // it has the thread
};

/// While it lives, no user code runs in `scope`, so no flag can be switched: when the fiber leaves
/// the thread, the flags are read once, and not again. A backward pass leaves the thread for every
/// remote call, and each time every flag of the model would be read.
class OwnCodeOnly {
 public:
  /// @param scope  nullptr: nothing is done
  explicit OwnCodeOnly(ExecutionScope* scope) noexcept;
  ~OwnCodeOnly();
  OwnCodeOnly(const OwnCodeOnly&) = delete;
  OwnCodeOnly& operator=(const OwnCodeOnly&) = delete;

 private:
  ExecutionScope* const scope_;
  const bool before_;
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
  const std::uint64_t order_key_;         // hash of key()
  const std::uint64_t number_;            // ExecutionScope::num_calls()
  std::uint32_t calls_ = 0;               // made so far
  std::uint32_t places_taken_ = 0;        // of ExecutionScope::next_place_in_program()
  const ModuleId module_;                 // for whoever looks on
  RoutedBase* called_by_body_ = nullptr;  // the module, if a body makes this call
  const int exceptions_ = std::uncaught_exceptions();
  std::optional<base::RandomScope> random_;
  std::optional<DeferredStatistics::Execution> statistics_;
};

/// The key of the random numbers that a body itself draws. @param base_key  that of its microbatch
[[nodiscard]] std::uint64_t random_key_of_body(std::uint64_t base_key) noexcept;

}  // namespace smp::server
