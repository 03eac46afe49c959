// server/step/failure_control.cpp: telling the others, and waking everyone who waits.
#include "server/step/failure_control.h"

#include <utility>

#include "alive/common_errors.h"
#include "base/check.h"
#include "base/log.h"
#include "server/protocol/exception_text.h"
#include "server/protocol/remote_exception.h"

namespace smp::server {
namespace {

/// The number of StepAborted thrown at one execution before its fiber is given up: user code that
/// swallows them in a loop would never end.
constexpr int kMostAbortedCalls = 100;

/// Describes what the running fiber does, for messages; outside of executions, as in a poll, only
/// the rank.
std::string who_runs(GlobalRank rank) {
  char who[256] = "";
  const auto* scope = ExecutionScope::current();
  if (scope == nullptr) return base::concat("rank ", rank);
  scope->describe(who, sizeof who);
  return who;
}

}  // namespace

void FailureControl::fail_step(std::exception_ptr error) {
  const auto rank = core_.port.name();
  if (core_.step == nullptr) {
    base::log(base::LogLevel::kError, "rank ", rank, ": outside of a step: ", text_of(error));
    return;
  }
  if (core_.step->failed()) return;
  core_.step->failure = std::move(error);
  auto failure = failure_of(core_.step->failure, core_.port.rank(), who_runs(rank));
  failure.text += about_unset_members(failure);
  let_one_rank_say(failure, text_of(core_.step->failure));
  tell_others({failure});
  abort_here(failure.text);
}

/// Code that reads a member of a module which runs elsewhere meets LibTorch's words for a tensor
/// that nobody has set.
std::string FailureControl::about_unset_members(const Failure& failure) const {
  const bool here = failure.rank == core_.port.rank();
  if (!here || failure.text.find("undefined Tensor") == std::string::npos) return {};
  const auto members = core_.scopes.modules.unset_members(core_.port.rank());
  if (members.empty()) return {};
  return base::concat(
      ". If code here reads a member of a module that lives on another rank: its forward sets it "
      "there, and here it is undefined. Such members have ",
      members, ". Place the module with that code (set_partition), or let it return the tensor");
}

/// Makes the rank where the error was thrown print it, with everything that is known of it.
void FailureControl::let_one_rank_say(const Failure& failure, const std::string& own_text) {
  if (failure.rank == core_.port.rank()) {
    if (!own_text.starts_with("rank ")) say_more(own_text, failure.text);
  } else {
    leave_to_another_rank(failure.text, core_.port.name(failure.rank));
  }
}

/// Tells the other ranks that the step failed. If the way to them is what failed, they find out by
/// their own waits.
void FailureControl::tell_others(const Failure& failure) noexcept try {
  core_.port.send_to_others(StepFailed{failure});
} catch (...) {
  const bool known = is_of_lost_peer(core_.step->failure);
  base::log(known ? base::LogLevel::kDebug : base::LogLevel::kWarning, "rank ", core_.port.name(),
            ": the other ranks could not be told that this step failed: ",
            text_of(std::current_exception()));
}

void FailureControl::on_step_failed(StepFailed&& message) {
  if (core_.step->failed()) return;
  let_one_rank_say(message.failure, message.failure.text);
  core_.step->failure = remote_exception(message.failure);
  abort_here(message.failure.text);
}

void FailureControl::on_late_failure(std::int64_t step, StepFailed&& message) {
  if (late_ || !ended_well(step)) return;
  late_ = std::move(message.failure);
  late_->text += base::concat(
      " (at the end of step ", step, ", which had ended on rank ", core_.port.name(),
      " already. Parameters of the ranks may differ now; load a state that they have in "
      "common)");
  if (core_.step != nullptr) fail_late();
}

void FailureControl::fail_late() {
  if (!late_) return;
  fail_step(remote_exception(*std::exchange(late_, std::nullopt)));
}

/// Ends every wait of the step on this rank: for answers, for a turn, for the step's end.
void FailureControl::abort_here(const std::string& why) noexcept {
  for (auto* target : core_.step->requests.take_all()) target->on_abort();
  core_.step->admission.open_all();
  core_.server.wake.signal();
  if (on_failure_) on_failure_(why);
}

void FailureControl::on_rank_left(PpRank peer, std::int64_t after_step) {
  if (left_.empty() || after_step < left_after_) {
    left_ = base::concat("rank ", core_.port.name(peer), " left after step ", after_step);
    left_after_ = after_step;
    left_peer_ = peer;
  }
  if (core_.step == nullptr || after_step >= core_.step->number || core_.step->failed()) return;
  // Nobody is told: each rank hears it from the one that left.
  const auto text = base::concat(
      "rank ", core_.port.name(), ": step ", core_.step->number, " cannot end: ", left_,
      "; every rank must run the same number of steps (see that rank's own message)");
  leave_to_another_rank(text, first_but(peer));
  core_.step->failure = std::make_exception_ptr(PeerLostError(text));
  abort_here(text);
}

void FailureControl::require_all_ranks() const {
  if (left_.empty() || core_.port.step() < left_after_) return;
  const auto text =
      base::concat("rank ", core_.port.name(), ": step ", core_.port.step() + 1,
                   " cannot start: ", left_, "; every rank must run the same number of steps");
  leave_to_another_rank(text, first_but(left_peer_));
  throw PeerLostError(text);
}

/// The rank that reports that `peer` has left: the first of the other stages.
GlobalRank FailureControl::first_but(PpRank peer) const {
  return core_.port.name(PpRank(peer.value() == 0 ? 1 : 0));
}

/// Nothing may be thrown into a destructor that runs because the step fails.
bool FailureControl::empty_because_unwinding() {
  if (!core_.step->failed()) return false;
  if (!swallow_while_unwinding()) throw_aborted();
  return true;
}

bool FailureControl::swallow_while_unwinding() {
  if (std::uncaught_exceptions() == 0) return false;
  ++core_.counters.swallowed;
  return true;
}

void FailureControl::throw_aborted() {
  auto& scope = *ExecutionScope::current();
  if (scope.count_aborted_call() > kMostAbortedCalls) {
    base::log(base::LogLevel::kError, who_runs(core_.port.name()),
              ": catches smp::StepAborted again and again (`catch (...)` in a loop?); its fiber is "
              "given up");
    core_.workers.give_up();
  }
  throw StepAborted{core_.port.rank().value()};
}

}  // namespace smp::server
