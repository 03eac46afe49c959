// server/running/execution_scope.cpp: the chain of calls on a fiber's stack.
#include "server/running/execution_scope.h"

#include <c10/util/SmallVector.h>

#include <cstdio>
#include <exception>
#include <utility>

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
                               CallPosition position, std::uint64_t base_key, bool replays)
    : services_(services),
      identity_(identity),
      caller_(std::move(position.caller)),
      base_key_(base_key),
      replays_(replays),
      top_{position.random_key, position.ordinal},
      outgoing_(identity.module, services.rows),
      settings_(services.settings,
                identity.module == kBody ? nullptr : services.modules.find(identity.module)),
      outer_activity_(std::exchange(fiber::current_fiber()->activity, this)),
      outer_scope_(current_scope().get()) {
  current_scope().set(this);
  if (const auto& layers = services.modules.statistics_of_body().layers();
      identity.module == kBody && identity.phase == schedule::Phase::kForward && !layers.empty() &&
      (!services.one_at_a_time || replays)) {
    statistics_.emplace(services.statistics, layers, identity.microbatch);
  }
  publish();
  settings_.apply();
  record(true);
}

ExecutionScope::~ExecutionScope() {
  outgoing_.abandon();
  running_call.clear();
  settings_.note();
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
  if (!thrown) return outgoing_.fetch_all();
  outgoing_.finish();
  std::rethrow_exception(thrown);
}

ExecutionScope* ExecutionScope::current() noexcept { return current_scope().get(); }

void ExecutionScope::set_phase(schedule::Phase phase) {
  record(false);
  identity_.phase = phase;
  publish();
  record(true);
}

CallLevel& ExecutionScope::level() noexcept {
  return innermost_ == nullptr ? top_ : innermost_->level_;
}

CallPosition ExecutionScope::position() {
  const auto& level = this->level();
  return {innermost_ == nullptr ? caller_ : innermost_->key(), level.calls, level.random_key};
}

CallPosition ExecutionScope::position_of_call() const {
  const auto* const outer = innermost_->outer_;
  return {outer == nullptr ? caller_ : outer->key(), innermost_->ordinal_,
          outer == nullptr ? top_.random_key : outer->level_.random_key};
}

bool ExecutionScope::saves_versions() const noexcept {
  if (services_.one_at_a_time) return false;
  for (const auto* call = innermost_; call != nullptr; call = call->outer_) {
    if (call->entry_.keeps_order()) return true;
  }
  return false;
}

/// Copies that are made on writing cost nothing else; where there are none (on GPUs), only buffers
/// are copied.
bool ExecutionScope::may_write_later(const at::Tensor& tensor) const noexcept {
  const bool cheap = tensor.is_cpu() && tensor.layout() == c10::kStrided;
  if (cheap && !tensor.requires_grad()) return true;
  for (const auto* call = innermost_; call != nullptr; call = call->outer_) {
    const auto& entry = call->entry_;
    if (!entry.keeps_order()) continue;
    if (entry.buffers.has(tensor) || entry.weights.has_written(tensor)) return true;
  }
  return false;
}

CallPosition ExecutionScope::next_call(std::uint32_t calls) {
  work_.note();
  if (innermost_ == nullptr) {
    collect_statistics();
  } else {
    innermost_->collect_statistics(innermost_->level_.calls);
  }
  auto& level = this->level();
  return {innermost_ == nullptr ? caller_ : innermost_->key(),
          std::exchange(level.calls, level.calls + calls), level.random_key};
}

module::CallPlace ExecutionScope::next_place_in_program() noexcept {
  const bool forward = identity_.phase == schedule::Phase::kForward;
  auto& level = this->level();
  const auto depth = innermost_ == nullptr ? "<top>" : "<call>";
  auto key = base::mix_key(level.random_key, std::string_view(depth));
  key = base::mix_key(key, static_cast<std::uint64_t>(identity_.microbatch) * 2 + forward);
  return {0, base::mix_key(key, level.places++), running_path(), identity_.microbatch, forward};
}

/// Returns the path of the module that runs: that of the innermost call.
const char* ExecutionScope::running_path() const noexcept {
  if (innermost_ != nullptr) return innermost_->entry_.lasting_path;
  return identity_.module == kBody ? "<body>" : services_.modules.at(identity_.module).lasting_path;
}

/// Tells the watchdog which module runs here.
void ExecutionScope::publish() const noexcept {
  const auto module = innermost_ == nullptr ? identity_.module : innermost_->module_;
  running_call.set(running_path(), services_.rank.value(), module.value, identity_.microbatch,
                   identity_.phase != schedule::Phase::kForward);
}

std::optional<std::uint64_t> ExecutionScope::random_key_of_hooks() const {
  if (identity_.module == kBody) return std::nullopt;
  const auto key = base::mix_key(base_key_, services_.modules.at(identity_.module).random_key);
  return base::mix_key(base::mix_key(key, top_.random_key), std::string_view("<backward>"));
}

void ExecutionScope::collect_statistics() {
  if (statistics_ && !replays_) statistics_->collect(caller_.child(top_.calls));
}

/// Exchanges statistics and flags. The same layers may belong to a call and to one inside it, so
/// they are given back from the innermost call outwards.
void ExecutionScope::on_switch(bool running) noexcept {
  record(running);
  stopwatch_.on_switch(running);
  if (running) {
    publish();
    settings_.resume();
    if (statistics_) statistics_->on_switch(true);
    if (innermost_ != nullptr) innermost_->on_switch(true);
  } else {
    running_call.clear();
    watch_members();
    settings_.suspend();
    if (innermost_ != nullptr) innermost_->on_switch(false);
    if (statistics_) statistics_->on_switch(false);
  }
}

void ExecutionScope::record(bool running) noexcept {
  auto& recorder = services_.recorder;
  if (!recorder.enabled() || replays_) return;
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
      ordinal_(execution.level().calls++),
      level_{base::mix_key(execution.level().random_key, ordinal_)},
      number_(execution.work_.begin()),
      module_(module) {
  // What may throw comes first: nobody knows of this call before it has begun.
  if (outer_ != nullptr) {
    outer_->collect_statistics(ordinal_);
  } else if (execution.statistics_ && !execution.replays_) {
    execution.statistics_->collect(execution.caller_.child(ordinal_));
  }
  // One microbatch at a time needs no order, and others may read or run these layers in between.
  const auto& layers = entry_.statistics.layers();
  if (!layers.empty() && (!execution.services_.one_at_a_time || execution.replays_)) {
    statistics_.emplace(execution.services_.statistics, layers, execution.identity_.microbatch);
  }
  if (entry_.draws_random) {
    random_.emplace(
        base::mix_key(base::mix_key(execution.base_key_, entry_.random_key), level_.random_key));
  }
  if (outer_ == nullptr && execution.identity_.module == kBody) {
    called_by_body_ = entry_.module;
    execution.settings_.body_call_begins(*called_by_body_);
  }
  execution.innermost_ = this;
  execution.publish();
}

/// The statistics of a call that throws count too, because somebody may catch the exception.
CallScope::~CallScope() {
  if (std::uncaught_exceptions() == exceptions_) {
    collect_statistics(level_.calls);
  } else {
    try {
      collect_statistics(level_.calls);
    } catch (...) {  // the first exception is on its way
    }
  }
  statistics_.reset();
  execution_.work_.end(number_);
  execution_.innermost_ = outer_;
  execution_.publish();
  if (called_by_body_ != nullptr) execution_.settings_.body_call_ends(*called_by_body_);
}

void CallScope::collect_statistics(std::uint32_t next) {
  if (statistics_ && !execution_.replays_) statistics_->collect(key().child(next));
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
