// api/step/step.cpp: steps as a program calls and counts them.
#include "smp/step.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "api/rank/agreement.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/state/session_state.h"
#include "api/step/step_call.h"
#include "base/check.h"
#include "module/call_handler.h"

namespace smp {

std::int64_t step_count() {
  const auto& session = SessionParts::current();
  return session.state.earlier_steps() + session.rank.server().steps();
}

void set_step_count(std::int64_t count) {
  auto& rank = Rank::current();
  SMP_REQUIRE(!rank.in_step(), "rank ", rank.topology().rank(), ": smp::set_step_count(", count,
              ") inside a step; call it before, on every rank");
  const PublicCall call("smp::set_step_count");
  require_equal(rank.groups().of(Group::kWorld), static_cast<std::uint64_t>(count),
                "the count given to smp::set_step_count",
                "read it from the checkpoint on one rank, and give it to all with smp::broadcast");
  SMP_REQUIRE(count >= 0, "rank ", rank.topology().rank(), ": smp::set_step_count(", count,
              "): steps count from 0; give it what smp::step_count() was");
  auto& state = SessionState::current();
  state.set_earlier_steps(count - rank.server().steps());
  state.set_roundings(count);
}

double microbatch_weight() {
  const auto* session = SessionParts::find_current();
  SMP_REQUIRE(session != nullptr || module::steps_running() == 0,
              "smp::microbatch_weight() was called on another thread than the rank's while a step "
              "runs, where nobody knows of which microbatch; ask in the module or hook itself, and "
              "hand the number to the thread");
  if (session == nullptr) return 1;
  return session->rank.engine().current_weight().value_or(1.0);
}

}  // namespace smp

namespace smp::detail {

StepRunner::StepRunner(StepOptions options) : options_(std::move(options)) {}

bool StepRunner::reads_arguments() { return SessionParts::current().rank.is_first_stage(); }

StepResult StepRunner::run(std::vector<StepArgument> arguments, const StepBody& body) {
  const auto& session = SessionParts::current();
  auto& rank = session.rank;
  SMP_REQUIRE(!rank.in_step(), "rank ", rank.topology().rank(),
              ": a step was called inside a step (in its body, or in a module or hook); call one "
              "after the other");
  auto result = [&] {
    const server::Watchdog::Step watched;  // over its trial run as well
    const server::BetweenSteps recorded(rank.server().recorder(), schedule::Phase::kOther);
    return StepCall(session, options_, seen_).run(std::move(arguments), body);
  }();
  session.state.end_step();
  return result;
}

}  // namespace smp::detail
