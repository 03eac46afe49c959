// server/execution_scope.cpp: the chain of calls on a fiber's stack.
#include "server/execution_scope.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "base/fiber_local.h"
#include "smp/call.h"

namespace smp::server {
namespace {

const base::FiberLocal<ExecutionScope>& current_scope() {
  static const base::FiberLocal<ExecutionScope> scope;
  return scope;
}

}  // namespace

// ---- executions
// -----------------------------------------------------------------------------------

ExecutionScope::ExecutionScope(ScopeServices& services, const ExecutionIdentity& identity,
                               CallPosition position, std::uint64_t base_key)
    : services_(services),
      identity_(identity),
      caller_(std::move(position.caller)),
      caller_random_(position.random_key),
      base_key_(base_key),
      calls_(position.ordinal),
      outer_activity_(std::exchange(fiber::current_fiber()->activity, this)),
      outer_scope_(current_scope().get()) {
  current_scope().set(this);
  on_switch(true);
}

ExecutionScope::~ExecutionScope() {
  on_switch(false);
  fiber::current_fiber()->activity = outer_activity_;
  current_scope().set(outer_scope_);
}

ExecutionScope* ExecutionScope::current() noexcept { return current_scope().get(); }

void ExecutionScope::set_phase(schedule::Phase phase) {
  on_switch(false);
  identity_.phase = phase;
  on_switch(true);
}

CallPosition ExecutionScope::next_call(std::uint32_t calls) {
  if (innermost_ == nullptr)
    return {caller_, std::exchange(calls_, calls_ + calls), caller_random_};
  auto& caller = *innermost_;
  return {caller.key(), std::exchange(caller.calls_, caller.calls_ + calls), caller.order_key_};
}

void ExecutionScope::on_switch(bool running) noexcept {
  auto& recorder = services_.recorder;
  if (!recorder.enabled()) return;
  if (running) {
    recorder.begin(identity_.microbatch, identity_.module.value, identity_.phase);
  } else {
    recorder.end();
  }
}

void ExecutionScope::describe(char* text, std::size_t size) const noexcept {
  const bool forward = identity_.phase == schedule::Phase::kForward;
  std::snprintf(text, size, "rank %d, module %s (%s), microbatch %d", services_.rank.value(),
                services_.modules.path(identity_.module), forward ? "forward" : "backward",
                identity_.microbatch);
}

// ---- calls
// ----------------------------------------------------------------------------------------

CallScope::CallScope(ExecutionScope& execution, ModuleId module)
    : execution_(execution),
      outer_(std::exchange(execution.innermost_, this)),
      ordinal_(outer_ == nullptr ? execution.calls_++ : outer_->calls_++),
      order_key_(base::mix_key(outer_ == nullptr ? execution.caller_random_ : outer_->order_key_,
                               ordinal_)) {
  const auto& entry = execution.services_.modules.at(module);
  if (entry.draws_random) {
    random_.emplace(
        base::mix_key(base::mix_key(execution.base_key_, entry.random_key), order_key_));
  }
  if (!entry.keeps_statistics) return;
  if (auto statistics = DeferredStatistics::of(entry.module->smp_module())) {
    statistics_.emplace(execution.services_.statistics, std::move(*statistics),
                        execution.identity_.microbatch, key());
  }
}

CallScope::~CallScope() { execution_.innermost_ = outer_; }

OrderKey CallScope::key() const {
  std::vector<std::uint32_t> inwards;
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
