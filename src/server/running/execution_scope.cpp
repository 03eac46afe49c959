// server/running/execution_scope.cpp: the chain of calls on a fiber's stack.
#include "server/running/execution_scope.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "alive/running_call.h"
#include "base/fiber_local.h"
#include "smp/detail/call.h"
#include "smp/error.h"

namespace smp::server {
namespace {

const base::FiberLocal<ExecutionScope>& current_scope() {
  static const base::FiberLocal<ExecutionScope> scope;
  return scope;
}

}  // namespace

// ---- executions --------------------------------------------------------------------------------

ExecutionScope::ExecutionScope(ScopeServices& services, const ExecutionIdentity& identity,
                               CallPosition position, std::uint64_t base_key)
    : services_(services),
      identity_(identity),
      caller_(std::move(position.caller)),
      caller_random_(position.random_key),
      base_key_(base_key),
      calls_(position.ordinal),
      way_(identity.module),
      settings_(services.settings.base()),
      outer_activity_(std::exchange(fiber::current_fiber()->activity, this)),
      outer_scope_(current_scope().get()) {
  if (identity.module != kBody) {
    if (auto* module = services.modules.find(identity.module)) {
      part_ = &services.settings.flags().subtree(module->smp_module());
    }
  }
  current_scope().set(this);
  if (const auto& layers = services.modules.statistics_of_body().layers();
      identity.module == kBody && identity.phase == schedule::Phase::kForward && !layers.empty() &&
      !services.one_at_a_time) {
    statistics_.emplace(services.statistics, layers, identity.microbatch);
  }
  publish();
  services_.settings.apply(settings_);
  record(true);
}

ExecutionScope::~ExecutionScope() {
  for (const auto& call : finished_calls_) call->abandon();
  for (const auto& call : open_calls_) call->abandon();
  running_call.clear();
  note_settings();
  record(false);
  fiber::current_fiber()->activity = outer_activity_;
  current_scope().set(outer_scope_);
  if (outer_scope_ != nullptr) outer_scope_->publish();
}

void ExecutionScope::run(c10::function_ref<void()> code) {
  std::exception_ptr thrown;
  try {
    code();
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) return fetch_promises();
  finish_calls();
  std::rethrow_exception(thrown);
}

std::uint32_t ExecutionScope::next_place(PpRank owner) {
  if (places_.size() <= owner.index()) places_.resize(owner.index() + 1, 0);
  return places_[owner.index()]++;
}

void ExecutionScope::finish_calls() {
  std::exception_ptr first;
  // What a result turns out to be may be asked for in the midst of it. They stay as long as the
  // execution, whatever comes: the program may have results of the last, and so all before it.
  const auto calls = std::exchange(open_calls_, {});
  finished_calls_.insert(finished_calls_.end(), calls.begin(), calls.end());
  for (const auto& call : calls) {
    try {
      call->finish();
    } catch (const StepAborted&) {
      throw;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void ExecutionScope::fetch_promises() {
  finish_calls();
  const auto calls = std::exchange(finished_calls_, {});
  for (const auto& call : calls) call->fetch_all();
}

ExecutionScope* ExecutionScope::current() noexcept { return current_scope().get(); }

void ExecutionScope::set_phase(schedule::Phase phase) {
  record(false);
  identity_.phase = phase;
  publish();
  record(true);
}

CallPosition ExecutionScope::next_call(std::uint32_t calls) {
  last_worked_ = ++num_calls_;
  if (innermost_ == nullptr) {
    collect_statistics();
    return {caller_, std::exchange(calls_, calls_ + calls), caller_random_};
  }
  auto& caller = *innermost_;
  caller.collect_statistics(caller.calls_);
  return {caller.key(), std::exchange(caller.calls_, caller.calls_ + calls), caller.order_key_};
}

module::CallPlace ExecutionScope::next_place_in_program() noexcept {
  const bool forward = identity_.phase == schedule::Phase::kForward;
  const auto caller = innermost_ == nullptr ? caller_random_ : innermost_->order_key_;
  const auto number = innermost_ == nullptr ? places_taken_++ : innermost_->places_taken_++;
  const auto depth = innermost_ == nullptr ? "<top>" : "<call>";
  auto key = base::mix_key(caller, std::string_view(depth));
  key = base::mix_key(key, static_cast<std::uint64_t>(identity_.microbatch) * 2 + forward);
  const char* path = "<body>";
  if (innermost_ != nullptr) {
    path = innermost_->entry_.lasting_path;
  } else if (identity_.module != kBody) {
    path = services_.modules.at(identity_.module).lasting_path;
  }
  return {0, base::mix_key(key, number), path, identity_.microbatch, forward};
}

void ExecutionScope::publish() const noexcept {
  const char* path = "<body>";
  ModuleId module = identity_.module;
  if (innermost_ != nullptr) {
    path = innermost_->entry_.lasting_path;
    module = innermost_->module_;
  } else if (module != kBody) {
    path = services_.modules.at(module).lasting_path;
  }
  running_call.set(path, services_.rank.value(), module.value, identity_.microbatch,
                   identity_.phase != schedule::Phase::kForward);
}

std::optional<std::uint64_t> ExecutionScope::random_key_of_hooks() const {
  if (identity_.module == kBody) return std::nullopt;
  const auto key = base::mix_key(base_key_, services_.modules.at(identity_.module).random_key);
  return base::mix_key(base::mix_key(key, caller_random_), std::string_view("<backward>"));
}

void ExecutionScope::set_settings(const SettingsBoard::View& settings) {
  settings_ = settings;
  services_.settings.apply(settings_);
}

const SettingsBoard::View& ExecutionScope::note_settings() noexcept {
  if (part_ == nullptr) {
    services_.settings.note(settings_);
  } else {
    services_.settings.note(settings_, *part_);
  }
  return settings_;
}

/// Reads all flags before a body's first call, since it may have switched any; before later calls
/// only those of the module that is called.
void ExecutionScope::body_call_begins(const RoutedBase& module) {
  auto& board = services_.settings;
  if (!body_settings_.called()) {
    board.note(settings_);
  } else {
    board.note(settings_, board.flags().subtree(const_cast<RoutedBase&>(module).smp_module()));
  }
  body_settings_.call_begins(settings_);
}

void ExecutionScope::body_call_ends(const RoutedBase& module) noexcept {
  const auto& part =
      services_.settings.flags().subtree(const_cast<RoutedBase&>(module).smp_module());
  services_.settings.note(settings_, part);
  body_settings_.call_ends(settings_, part);
}

void ExecutionScope::collect_statistics() {
  if (statistics_) statistics_->collect(caller_.child(calls_));
}

/// Exchanges statistics and flags. The same layers may belong to a call and to one inside it, so
/// they are given back from the innermost call outwards.
void ExecutionScope::on_switch(bool running) noexcept {
  record(running);
  if (stopwatch_ != nullptr) {
    if (!running) measured_ = measured();
    since_ = stopwatch_->now();
  }
  if (running) {
    publish();
    services_.settings.resume(settings_);
    if (statistics_) statistics_->on_switch(true);
    if (innermost_ != nullptr) innermost_->on_switch(true);
  } else {
    running_call.clear();
    watch_members();
    leave_settings();
    if (innermost_ != nullptr) innermost_->on_switch(false);
    if (statistics_) statistics_->on_switch(false);
  }
}

void ExecutionScope::leave_settings() noexcept {
  if (!own_code_only_) {
    services_.settings.suspend(settings_, part_);
  } else if (!std::exchange(noted_, true)) {
    note_settings();
  }
}

OwnCodeOnly::OwnCodeOnly(ExecutionScope* scope) noexcept
    : scope_(scope), before_(scope != nullptr && scope->own_code_only_) {
  if (scope_ == nullptr) return;
  scope_->own_code_only_ = true;
  scope_->noted_ = false;
}

OwnCodeOnly::~OwnCodeOnly() {
  if (scope_ != nullptr) scope_->own_code_only_ = before_;
}

void ExecutionScope::measure(const base::Clock* clock) noexcept {
  stopwatch_ = clock;
  measured_ = 0;
  if (clock != nullptr) since_ = clock->now();
}

/// Called by the fiber itself, while it has the thread or as it leaves it.
base::Nanoseconds ExecutionScope::measured() const noexcept {
  return stopwatch_ == nullptr ? 0 : measured_ + stopwatch_->now() - since_;
}

void ExecutionScope::record(bool running) noexcept {
  auto& recorder = services_.recorder;
  if (!recorder.enabled()) return;
  if (running) {
    recorder.begin(identity_.microbatch, identity_.module.value, identity_.phase);
  } else {
    recorder.end();
  }
}

/// Notes what each call in progress has written to members so far, before another call of its
/// module can run.
void ExecutionScope::watch_members() noexcept {
  for (const auto* call = innermost_; call != nullptr; call = call->outer_) {
    auto& watch = call->entry_.watch;
    if (watch.on()) watch.suspend(identity_.microbatch);
  }
}

void ExecutionScope::describe(char* text, std::size_t size) const noexcept {
  const bool forward = identity_.phase == schedule::Phase::kForward;
  std::snprintf(text, size, "rank %d, module %s (%s), microbatch %d", services_.rank.value(),
                services_.modules.path(identity_.module), forward ? "forward" : "backward",
                identity_.microbatch);
}

// ---- calls -------------------------------------------------------------------------------------

CallScope::CallScope(ExecutionScope& execution, ModuleId module)
    : execution_(execution),
      entry_(execution.services_.modules.at(module)),
      outer_(execution.innermost_),
      ordinal_(outer_ == nullptr ? execution.calls_++ : outer_->calls_++),
      order_key_(base::mix_key(outer_ == nullptr ? execution.caller_random_ : outer_->order_key_,
                               ordinal_)),
      number_(++execution.num_calls_),
      module_(module) {
  // What may throw comes first: nobody knows of this call before it has begun.
  if (outer_ != nullptr) {
    outer_->collect_statistics(ordinal_);
  } else if (execution.statistics_) {
    execution.statistics_->collect(execution.caller_.child(ordinal_));
  }
  // One microbatch at a time needs no order, and others may read or run these layers in between.
  const auto& layers = entry_.statistics.layers();
  if (!layers.empty() && !execution.services_.one_at_a_time) {
    statistics_.emplace(execution.services_.statistics, layers, execution.identity_.microbatch);
  }
  if (entry_.draws_random) {
    random_.emplace(
        base::mix_key(base::mix_key(execution.base_key_, entry_.random_key), order_key_));
  }
  if (outer_ == nullptr && execution.identity_.module == kBody) {
    called_by_body_ = entry_.module;
    execution.body_call_begins(*called_by_body_);
  }
  execution.innermost_ = this;
  execution.publish();
}

/// The statistics of a call that throws count too, because somebody may catch the exception.
CallScope::~CallScope() {
  if (std::uncaught_exceptions() == exceptions_) {
    collect_statistics(calls_);
  } else {
    try {
      collect_statistics(calls_);
    } catch (...) {  // the first exception is on its way
    }
  }
  statistics_.reset();
  execution_.last_worked_ = std::max(execution_.last_worked_, number_);
  execution_.innermost_ = outer_;
  execution_.publish();
  if (called_by_body_ != nullptr) execution_.body_call_ends(*called_by_body_);
}

void CallScope::collect_statistics(std::uint32_t next) {
  if (statistics_) statistics_->collect(key().child(next));
}

void CallScope::on_switch(bool running) noexcept {
  if (running && outer_ != nullptr) outer_->on_switch(true);
  if (statistics_) statistics_->on_switch(running);
  if (!running && outer_ != nullptr) outer_->on_switch(false);
}

OrderKey CallScope::key() const {
  c10::SmallVector<std::uint32_t, 16> inwards;
  for (const auto* call = this; call != nullptr; call = call->outer_) {
    inwards.push_back(call->ordinal_);
  }
  auto key = execution_.caller_;
  for (auto ordinal = inwards.rbegin(); ordinal != inwards.rend(); ++ordinal) key.append(*ordinal);
  return key;
}

std::uint64_t random_key_of_body(std::uint64_t base_key) noexcept {
  return base::mix_key(base_key, std::string_view("<body>"));
}

static_assert(sizeof(CallScope) <= sizeof(CallHandler::Space), "CallHandler::Space is too small");

}  // namespace smp::server
