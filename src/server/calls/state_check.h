// server/calls/state_check.h: what modules keep between calls (members, buffers, running
// statistics), and whether microbatches that interleave find what one process would
// (docs/design.md, State of modules).
#pragma once

#include "server/modules/module_table.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

class CallScope;

/// Watches each call of a module that runs on this rank. Where a module turns out to keep state and
/// no result can be wrong yet, later steps keep the order of microbatches; else the step fails.
/// Threads: the rank's.
class StateCheck {
 public:
  StateCheck(ServerCore& core, FailureControl& failures) : core_(core), failures_(failures) {}

  /// Called before a call of `module`. If that keeps state in order, suspends until earlier
  /// microbatches have gone first.
  /// @throws UnsupportedError  a later microbatch has been there.
  void await_order(ModuleId module);
  void enter(CallScope& call);
  void leave(CallScope& call) noexcept;
  /// Called before a call that leaves for another rank.
  /// @throws UsageError  this step changed members of the module, which is a copy here.
  void require_unchanged_copy(const ModuleTable::Entry& entry) const;
  /// Called when a body calls a module, or ends: checks whether normalisation layers of its own
  /// were trained and then evaluated. The statistics of that training must have been collected.
  void watch_statistics_of_body() noexcept;
  /// Called before the end of a step, which commits running statistics. The step fails if other
  /// code has written statistics that wait for their order.
  void require_own_statistics() noexcept;

 private:
  void on_state(const ModuleTable::Entry& entry) noexcept;
  void on_untried_state(const ModuleTable::Entry* entry, const char* what, bool harmful) noexcept;
  void on_buffer_write(const ModuleTable::Entry& entry, int microbatch) noexcept;
  void watch_statistics(const StatisticsWatch& layers, const ModuleTable::Entry* entry) noexcept;

  ServerCore& core_;
  FailureControl& failures_;
};

}  // namespace smp::server
