// server/calls/state_check.cpp: what was noticed, and what becomes of this step and the later ones.
#include "server/calls/state_check.h"

#include <exception>
#include <string>

#include "base/check.h"
#include "server/running/execution_scope.h"
#include "smp/error.h"

namespace smp::server {
namespace {

/// Returns the beginning of a message: "rank 1, module 'a.b' (Counter)".
std::string description_of(GlobalRank rank, const ModuleTable::Entry& entry) {
  return base::concat("rank ", rank, ", module '", entry.path, "' (", entry.module->smp_type_name(),
                      ")");
}

/// Returns the end of a message about a module that turned out to keep state in the midst of a
/// step: what `later` steps do, and the `trait` which makes the first one do so.
std::string no_trial_run_showed_it(const char* later, const char* trait) {
  return base::concat("No trial run showed it; ", later,
                      ". To do so from the first step, specialise ", trait, " for the class");
}

}  // namespace

/// Begins the watches of a call: user code is about to run in the module.
void StateCheck::enter(CallScope& call) {
  auto& watch = call.entry().watch;
  if (watch.on() && watch.enter(call.microbatch())) on_state(call.entry());
  auto& buffers = call.entry().buffers;
  if (buffers.on()) {
    call.buffer_versions = buffers.begin_call(call.microbatch());
    if (buffers.written_outside()) {
      const auto& task = core_.step->task;
      on_untried_state(&call.entry(),
                       "its buffers were written during the step by other code than its own calls, "
                       "and other microbatches may have read them too early or too late",
                       !task.one_at_a_time && task.microbatches > 1);
    }
  }
  watch_statistics(call.entry().statistics, &call.entry());
}

void StateCheck::leave(CallScope& call) noexcept {
  auto& watch = call.entry().watch;
  if (watch.on() && watch.leave(call.microbatch())) on_state(call.entry());
  auto& buffers = call.entry().buffers;
  if (buffers.on() && buffers.wrote_since(call.buffer_versions)) {
    on_buffer_write(call.entry(), call.microbatch());
  }
}

/// Takes the news that a module has written its buffers, which no trial run has shown. If it keeps
/// state, microbatches enter it in order from now on; the step fails if buffers were written out of
/// order already.
void StateCheck::on_buffer_write(const ModuleTable::Entry& entry, int microbatch) noexcept try {
  if (core_.step == nullptr || core_.step->failed()) return;
  if (entry.buffers.keeps_state()) core_.scopes.modules.note_order(entry);
  const auto& task = core_.step->task;
  if (task.one_at_a_time || task.microbatches == 1) return;
  const int highest = core_.step->visits.enter(entry.module->smp_place.index, microbatch);
  const bool shared = entry.buffers.is_shared() && entry.buffers.keeps_state();
  if (!shared && highest <= microbatch) return;
  const auto* const written = entry.buffers.written();
  throw UnsupportedError(base::concat(
      description_of(core_.port.name(), entry), " writes ",
      written == nullptr ? "its buffers" : "its buffer '" + written->name + "'",
      " in forward, and ",
      shared ? "another microbatch was in it as well"
             : base::concat("microbatch ", highest, " did so before microbatch ", microbatch),
      ". ", no_trial_run_showed_it("later steps keep the order", "smp::ordered_state_v"),
      " (smp/state.h)"));
} catch (...) {
  failures_.fail_step(std::current_exception());
}

/// Takes the news of a read or write that only one microbatch at a time can do as in one process.
/// pp_rank 0 has the microbatches run so from the next step on; elsewhere the module must move.
/// @param entry    the module; nullptr: the step's body
/// @param what     the text of what happened
/// @param harmful  true if this step may have wrong results, so that it fails
void StateCheck::on_untried_state(const ModuleTable::Entry* entry, const char* what,
                                  bool harmful) noexcept try {
  if (core_.step == nullptr || core_.step->failed()) return;
  const bool first = core_.port.is_first();
  if (first) core_.scopes.modules.note_state();
  if (!harmful) return;
  throw UnsupportedError(base::concat(
      entry == nullptr ? base::concat("rank ", core_.port.name(), ", the step's body")
                       : description_of(core_.port.name(), *entry),
      ": ", what, ". ",
      first ? no_trial_run_showed_it("the next step runs one microbatch at a time",
                                     "smp::shared_state_v")
            : "Place it on stage 0 with the modules above it, and specialise smp::shared_state_v "
              "for the class",
      " (smp/state.h)"));
} catch (...) {
  failures_.fail_step(std::current_exception());
}

/// Checks layers in evaluation mode, which read running statistics: those of layers that were
/// trained earlier in the same step may not be committed yet.
void StateCheck::watch_statistics(const StatisticsWatch& layers,
                                  const ModuleTable::Entry* entry) noexcept {
  if (layers.layers().empty()) return;
  auto& scopes = core_.scopes;
  if (scopes.one_at_a_time) {
    if (layers.read_after_writing()) scopes.modules.note_state();
  } else if (scopes.statistics.are_read_early(layers.layers())) {
    on_untried_state(entry,
                     "a normalisation layer runs in evaluation mode after it was trained in the "
                     "same step, whose end commits its running statistics",
                     true);
  }
}

void StateCheck::watch_statistics_of_body() noexcept {
  watch_statistics(core_.scopes.modules.statistics_of_body(), nullptr);
}

void StateCheck::require_own_statistics() noexcept {
  if (core_.scopes.one_at_a_time) return;
  const auto* entry = core_.scopes.modules.with_written_statistics(core_.port.rank());
  if (entry == nullptr) return;
  on_untried_state(entry,
                   "its running statistics were updated during the step by other code than its own "
                   "calls too, in an order that cannot be kept",
                   true);
}

/// Makes microbatches enter a module that keeps state for its own later calls in the order of one
/// process.
void StateCheck::await_order(ModuleId module) {
  const auto& entry = core_.scopes.modules.at(module);
  if (!entry.in_order) return;
  const int microbatch = ExecutionScope::current()->identity().microbatch;
  core_.step->admission.pass_in_order(microbatch, entry.path.c_str());
  if (failures_.empty_because_unwinding()) return;
  const int highest = core_.step->visits.enter(module.value, microbatch);
  SMP_REQUIRE_AS(UnsupportedError, highest <= microbatch, description_of(core_.port.name(), entry),
                 ": it keeps state, and microbatch ", microbatch,
                 " calls it after its first backward, when microbatch ", highest,
                 " has called it already; run one microbatch at a time (active_microbatches = 1, "
                 "pipeline = \"interleaved\"), or specialise smp::shared_state_v for the class");
}

/// Takes the news that a module keeps state in members, which was not known. Where no call can have
/// read wrong state yet, only later steps keep the order; else the step fails.
void StateCheck::on_state(const ModuleTable::Entry& entry) noexcept try {
  // Elsewhere it would not make microbatches run one after the other, only seem so.
  const bool with_readers = core_.port.is_first();
  if (with_readers) core_.scopes.modules.note_state();
  const auto& task = core_.step->task;
  if (with_readers && (task.one_at_a_time || task.microbatches == 1)) return;
  const auto& watch = entry.watch;
  const auto remedy =
      with_readers
          ? "; microbatches that interleave would read each other's. " +
                no_trial_run_showed_it("the next step runs one microbatch at a time",
                                       "smp::shared_state_v") +
                "; else"
          : std::string(
                "; on this rank neither its parent nor the step's body can read them. Place it on "
                "stage 0 with the modules above it, or");
  throw UnsupportedError(base::concat(
      description_of(core_.port.name(), entry), " writes its members in forward: microbatches ",
      watch.earlier_microbatch(), " and ", watch.microbatch(), " did, at byte ", watch.offset(),
      " of its ", watch.size(), remedy,
      " say who reads them, beside the class: `template <> inline constexpr bool "
      "smp::ordered_state_v<",
      entry.module->smp_type_name(),
      "> = true;` if only its own calls do, smp::private_state_v if it does not matter what they "
      "find (smp/state.h)"));
} catch (...) {
  failures_.fail_step(std::current_exception());
}

/// Code of this rank that sets members of a module of another rank sets those of a copy that never
/// runs.
void StateCheck::require_unchanged_copy(const ModuleTable::Entry& entry) const {
  auto& copy = entry.copy;
  SMP_REQUIRE(
      !copy.on() || !copy.changed(), "rank ", core_.port.name(),
      ": this step changed members of module '", entry.path, "' (", entry.module->smp_type_name(),
      ", byte ", copy.offset(), " of ", copy.size(), "), which lives on rank ",
      core_.port.name(entry.module->smp_place.owner),
      " and stays as it was there. Pass the value as an argument of the call, set it on "
      "every rank between steps, or place the module on stage 0 with the code that sets it");
}

}  // namespace smp::server
