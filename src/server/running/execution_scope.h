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

/// What the executions of a rank share.
struct ScopeServices {
  ScopeServices(GlobalRank of, const base::Clock& clock) : rank(of), recorder(clock) {}

  const GlobalRank rank;  ///< for messages
  ModuleTable modules;
  SpanRecorder recorder;
  DeferredStatistics statistics;
  SettingsBoard settings;
  bool one_at_a_time = false;  ///< the microbatches of this step; then statistics have their order
  std::uint64_t rows = 0;      ///< that were given to executions
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
  /// Although there is an OwnCodeOnly, code of the user's has run.
  void note_user_code() noexcept { noted_ = false; }

  const ExecutionIdentity& identity() const noexcept { return identity_; }
  const ScopeServices& services() const noexcept { return services_; }
  /// A routed module that the execution called runs on this rank, below it on the stack.
  bool inside_call() const noexcept { return innermost_ != nullptr; }
  void set_phase(schedule::Phase phase);
  void set_after_first_backward() noexcept { identity_.after_first_backward = true; }

  /// Where the next call stands; `calls` of the program are made by it.
  [[nodiscard]] CallPosition next_call(std::uint32_t calls);
  /// Of what the running call, or the execution at its top, does next together with ranks that run
  /// the same program; the step is left open.
  [[nodiscard]] module::CallPlace next_place_in_program() noexcept;
  // Calls that returned before they ended.

  /// Of the requests that this execution makes from now on.
  std::uint64_t row() noexcept { return row_ == 0 ? row_ = ++services_.rows : row_; }
  /// The place of the next one of them to `owner`.
  std::uint32_t next_place(PpRank owner);
  /// It could not be sent.
  void give_back_place(PpRank owner) noexcept { --places_[owner.index()]; }
  bool has_open_calls() const noexcept { return !open_calls_.empty(); }
  const std::vector<std::shared_ptr<OpenCall>>& open_calls() const noexcept { return open_calls_; }
  /// The number of calls so far, of those that left and of those here.
  std::uint64_t num_calls() const noexcept { return num_calls_; }
  /// Whether one that came after the first `number` has left, or has ended here.
  bool has_worked_since(std::uint64_t number) const noexcept { return last_worked_ > number; }
  /// Something that a call which waits would have put off was done.
  void note_work() noexcept { last_worked_ = ++num_calls_; }
  void add(std::shared_ptr<OpenCall> call) { open_calls_.push_back(std::move(call)); }
  /// The calls that left so far.
  CallWay& way() noexcept { return way_; }
  /// Runs `code` of this execution and waits for the calls that it made. If it throws, one of these
  /// may have thrown before.
  void run(c10::function_ref<void()> code);
  /// Waits for all of them. @throws what the first in the order of the program threw.
  void finish_calls();
  /// The execution ends: what it promised to others, or left in members, is there.
  void fetch_promises();

  // Settings: what the modules say while this runs.

  /// Those of the step's begin, unless these are set before anything runs.
  void set_settings(const SettingsBoard::View& settings);
  /// As they are now.
  const SettingsBoard::View& note_settings() noexcept;
  const SettingsBoard::View& settings() const noexcept { return settings_; }
  /// Of what hooks draw while the backward of this record runs; nothing for a body, whose own
  /// stream serves its backward too.
  [[nodiscard]] std::optional<std::uint64_t> random_key_of_hooks() const;
  /// Of a body, for the check at its end.
  const BodySettings& body_settings() const noexcept { return body_settings_; }
  /// Brackets of a call that a body itself makes; others are not looked at.
  [[nodiscard]] bool calls_from_body() const noexcept {
    return innermost_ == nullptr && identity_.module == kBody;
  }
  void body_call_begins(const RoutedBase& module);
  void body_call_ends(const RoutedBase& module) noexcept;

  /// How often StepAborted was thrown at this execution, this time included.
  int count_aborted_call() noexcept { return ++aborted_calls_; }
  /// Makes what runs here known to the watchdog: the innermost call.
  void publish() const noexcept;
  /// The body ended well: the running statistics of its own layers count.
  void collect_statistics();

  /// From now on, how long it has the thread is measured with `clock`; nullptr: no more.
  void measure(const base::Clock* clock) noexcept;
  /// In ns, since measure().
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

/// While it lives, no code of the user's runs in `scope`, which cannot switch anything then: when
/// it leaves the thread, the modules are looked at once, and not again. A backward pass leaves for
/// every remote call, and to look at them is to read every flag of the model.
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

  /// Of the calls that this one makes.
  [[nodiscard]] OrderKey key() const;
  const ModuleTable::Entry& entry() const noexcept { return entry_; }
  int microbatch() const noexcept { return execution_.identity_.microbatch; }

  std::uint64_t buffer_versions = 0;  ///< BufferWatch::begin_call()

 private:
  friend class ExecutionScope;

  /// What the layers have seen so far stands before call `next` of those that this one makes.
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

/// While it lives, random numbers are those of the step body itself.
[[nodiscard]] std::uint64_t random_key_of_body(std::uint64_t base_key) noexcept;

}  // namespace smp::server
