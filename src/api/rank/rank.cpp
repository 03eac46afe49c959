// api/rank/rank.cpp: building a rank, and the checks at start.
#include "api/rank/rank.h"

#include <exception>
#include <string>

#include "alive/common_errors.h"
#include "api/rank/agreement.h"
#include "api/rank/session_parts.h"
#include "base/check.h"
#include "base/log.h"
#include "module/registry.h"
#include "server/protocol/exception_text.h"
#include "smp/detail/call.h"

namespace smp {
namespace {

server::ServerOptions server_options(const RankParts& parts) {
  server::ServerOptions options(parts.config.values());
  options.oversubscribed = parts.oversubscribed();
  return options;
}

std::unique_ptr<schedule::Schedule> make_schedule(const RankParts& parts, int active_microbatches) {
  const Config& config = parts.config.values();
  const schedule::StepShape shape{.pp_size = parts.topology.pp_size(),
                                  .microbatches = config.microbatches,
                                  .active_microbatches = active_microbatches};
  return schedule::make_schedule(config.pipeline, shape);
}

/// Those of ranks that share layers: nobody else has collectives of tensors on devices.
void connect_devices(const RankParts& parts, d2d::Communicators& communicators,
                     const tp::TensorParallel& group) {
  const auto& wanted = parts.config.values().device_collectives;
  const auto make = d2d::device_collectives_of(parts.device.type());
  if (wanted == "messages" || (wanted == "auto" && !make)) return;
  if (parts.plan_request || group.size() == 1) return;
  const auto& ranks = group.ranks();
  try {
    const auto problem = communicators.use_devices(ranks, make, parts.device, wanted == "nccl");
    if (problem.empty() || ranks.rank() > 0) return;
    base::log(base::LogLevel::kInfo, "collectives of ", ranks.members().text(),
              " are done by messages: ", problem);
  } catch (const UnsupportedError& error) {
    if (ranks.rank() > 0) server::leave_to_another_rank(error.what(), ranks.members()[0]);
    throw;
  }
}

}  // namespace

Rank::Rank(const RankParts& parts)
    : parts_(parts),
      communicators_(*parts.channel),
      groups_(parts, communicators_),
      reporting_(parts),
      tensor_parallel_(groups_.slice_holders(), places_,
                       tp::layout_named(config().optimize, "the settings"),
                       config().prescaled_batch),
      current_group_(tp::TensorParallel::local(), &tensor_parallel_),
      schedule_(make_schedule(parts, config().active_microbatches.value())),
      active_microbatches_(config().active_microbatches.value()),
      server_(*parts.channel, parts.ranks_there(Group::kPp), server_options(parts),
              [this](const std::string& why) { communicators_.abort(why); }) {}

void Rank::start() {
  parts_.channel->set_deadline(
      static_cast<base::Nanoseconds>(config().abort_seconds * static_cast<double>(base::kSecond)));
  server_.set_failure_handler([this](const std::string& why) { fail_meetings(why); });
  if (parts_.plan_request) tensor_parallel_.pretend(topology().tp_size());
  if (!config().delayed_parameter_initialization) eager_.emplace();
  reporting_.report_once([this] {
    module::require_distinct_calls();
    const auto all = groups_.of(Group::kWorld);
    require_equal_hashes(all, call_registry_hash(), "the set of routed modules",
                         "start the same program file on every rank");
  });
  connect_devices(parts_, communicators_, tensor_parallel_);
  // Last: what is thrown above ends the wire, and the scheduler lives on.
  if (auto* const doorbell = channel().routes().wires().doorbell()) {
    fiber::Scheduler::instance().set_doorbell(doorbell);
  }
}

void Rank::expect_step(bool shared) noexcept {
  shared_step_ = shared;
  if (!shared) return;
  ++shared_steps_;
  steps_before_ = server_.steps();
}

std::uint64_t Rank::epoch() const noexcept {
  constexpr int kBitsBetween = 32;  // for steps between two that are shared
  return (static_cast<std::uint64_t>(shared_steps_) << kBitsBetween) +
         static_cast<std::uint64_t>(server_.steps() - steps_before_);
}

std::optional<module::CallPlace> Rank::Places::next() {
  auto place = rank_.server_.places().next();
  if (place) place->step = rank_.epoch();
  return place;
}

/// Ranks that wait for this one in the step wait in vain, and what waits here for messages of other
/// ranks shall not.
void Rank::fail_meetings(const std::string& why) noexcept try {
  const auto ranks = shared_step_ ? groups_.replicas() : groups_.slice_holders();
  communicators_.fail_epoch(epoch(), ranks.members(), why);
} catch (...) {  // they find out by their own waits
  base::log(base::LogLevel::kWarning, "rank ", communicators_.rank(),
            ": the others could not be told that this step failed: ",
            server::text_of(std::current_exception()));
}

void Rank::lower_active_microbatches(int most) {
  if (most >= active_microbatches_ || config().pipeline != "interleaved") return;
  schedule_ = make_schedule(parts_, most);
  active_microbatches_ = most;
}

void Rank::set_trial(server::StepEngine* trial) noexcept {
  trial_ = trial;
  tensor_parallel_.set_alone(trial != nullptr || parts_.plan_request.has_value());
}

void Rank::leave() noexcept {
  if (channel().routes().wires().doorbell() != nullptr)
    fiber::Scheduler::instance().set_doorbell(nullptr);
  if (!parts_.channel->end().empty()) return;  // nobody can be told
  try {
    server_.leave_job();
    communicators_.announce_leaving(base::concat("left after step ", server_.steps()));
  } catch (const std::exception& error) {  // nothing may leave a destructor
    base::log(base::LogLevel::kWarning,
              "not all ranks could be told that this one leaves: ", error.what());
  }
}

Rank& Rank::current() { return SessionParts::current().rank; }

Rank* Rank::find_current() noexcept {
  const auto* session = SessionParts::find_current();
  return session == nullptr ? nullptr : &session->rank;
}

}  // namespace smp
