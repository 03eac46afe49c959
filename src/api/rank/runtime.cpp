// api/rank/runtime.cpp: building a rank, and the checks at start.
#include "api/rank/runtime.h"

#include <atomic>
#include <string>
#include <utility>

#include "alive/common_errors.h"
#include "base/check.h"
#include "base/log.h"
#include "module/registry.h"
#include "server/protocol/exception_text.h"
#include "smp/detail/call.h"

namespace smp {
namespace {

const base::FiberLocal<Runtime>& current_runtime() {
  static const base::FiberLocal<Runtime> runtime;
  return runtime;
}

server::ServerOptions server_options(const Runtime::Parts& parts) {
  const auto& config = parts.config.values();
  server::ServerOptions options;
  options.fiber_stack_bytes = static_cast<std::size_t>(config.fiber_stack_bytes);
  options.seed = config.seed;
  options.stall_seconds = config.stall_seconds;
  options.abort_seconds = config.abort_seconds;
  options.oversubscribed = parts.oversubscribed();
  options.promised_outputs = config.promised_outputs && (!config.static_mode || config.fast_mode);
  options.static_mode = config.static_mode;
  return options;
}

/// The number of sessions that this process has now.
std::atomic<int>& sessions() {
  static std::atomic<int> count{0};
  return count;
}
std::atomic<int>& ended_sessions() {
  static std::atomic<int> count{0};
  return count;
}

/// Returns the ranks of the group that are there; while a job is planned, this rank alone.
std::vector<GlobalRank> ranks_there(const Runtime::Parts& parts, Group which) {
  if (parts.plan_request) return {GlobalRank(parts.topology.rank())};
  return ranks_of(parts.topology, which);
}

/// Returns the name of the group in the documents.
const char* name_of(Group which) {
  switch (which) {
    case Group::kWorld:
      return "WORLD";
    case Group::kMp:
      return "MP_GROUP";
    case Group::kPp:
      return "PP_GROUP";
    case Group::kTp:
      return "TP_GROUP";
    case Group::kDp:
      return "DP_GROUP";
    case Group::kRdp:
      return "RDP_GROUP";
    case Group::kLocal:
      return "LOCAL_GROUP";
  }
  return "ranks";
}

std::unique_ptr<schedule::Schedule> make_schedule(const Runtime::Parts& parts) {
  const Config& config = parts.config.values();
  const schedule::StepShape shape{.pp_size = parts.topology.pp_size(),
                                  .microbatches = config.microbatches,
                                  .active_microbatches = config.active_microbatches.value()};
  return schedule::make_schedule(config.pipeline, shape);
}

}  // namespace

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      current_(current_runtime(), this),
      communicators_(*parts_.channel),
      tensor_parallel_(slice_holders(), places_,
                       tp::layout_named(config().optimize, "the settings"),
                       config().prescaled_batch),
      current_group_(tp::TensorParallel::local(), &tensor_parallel_),
      schedule_(make_schedule(parts_)),
      server_(*parts_.channel, ranks_there(parts_, Group::kPp), server_options(parts_),
              [this](const std::string& why) { communicators_.abort(why); }) {
  parts_.channel->set_deadline(
      static_cast<base::Nanoseconds>(config().abort_seconds * static_cast<double>(base::kSecond)));
  places_.server = &server_;
  server_.set_failure_handler(
      [this](std::int64_t step, const std::string& why) { fail_meetings(step, why); });
  if (parts_.plan_request) tensor_parallel_.pretend(topology().tp_size());
  if (!config().delayed_parameter_initialization) eager_.emplace();
  say_once([this] {
    module::require_distinct_calls();
    const auto all = communicator(Group::kWorld);
    require_equal(all, call_registry_hash(), "the set of routed modules",
                  "start the same program file on every rank");
  });
  connect_devices();
  // Last: what is thrown above ends the wire, and the scheduler lives on.
  if (auto* const doorbell = routes().wires().doorbell()) {
    fiber::Scheduler::instance().set_doorbell(doorbell);
  }
}

/// Connects the devices of ranks that share layers: no other ranks have collectives of tensors on
/// devices.
void Runtime::connect_devices() {
  const auto& wanted = config().device_collectives;
  const auto make = d2d::device_collectives_of(device().type());
  if (wanted == "messages" || (wanted == "auto" && !make)) return;
  if (parts_.plan_request || tensor_parallel_.size() == 1) return;
  const auto& ranks = tensor_parallel_.ranks();
  try {
    const auto problem = communicators_.use_devices(ranks, make, device(), wanted == "nccl");
    if (problem.empty() || ranks.rank() > 0) return;
    base::log(base::LogLevel::kInfo, "collectives of ", ranks.members().text(),
              " are done by messages: ", problem);
  } catch (const UnsupportedError& error) {
    if (ranks.rank() > 0) server::leave_to_another_rank(error.what(), ranks.members()[0]);
    throw;
  }
}

void Runtime::set_trial(server::StepEngine* trial) noexcept {
  trial_ = trial;
  tensor_parallel_.set_alone(trial != nullptr || parts_.plan_request.has_value());
}

/// Ends the waits of ranks that wait for this one in a module of the failed step.
void Runtime::fail_meetings(std::int64_t step, const std::string& why) noexcept try {
  if (tensor_parallel_.size() == 1) return;
  communicators_.fail_epoch(static_cast<std::uint64_t>(step), tensor_parallel_.ranks().members(),
                            why);
} catch (...) {  // they find out by their own waits
  base::log(base::LogLevel::kWarning, "rank ", topology().rank(),
            ": tensor-parallel ranks could not be told that this step failed: ",
            server::text_of(std::current_exception()));
}

Runtime::Counted::Counted() noexcept { ++sessions(); }
Runtime::Counted::~Counted() {
  --sessions();
  ++ended_sessions();
}

void Runtime::say_once(const std::function<void()>& check) const {
  try {
    check();
  } catch (const Error& error) {
    if (prints_less()) server::leave_to_another_rank(error.what(), speaker());
    throw;
  }
}

Runtime::~Runtime() {
  *alive_ = false;
  if (routes().wires().doorbell() != nullptr) fiber::Scheduler::instance().set_doorbell(nullptr);
  if (!parts_.channel->end().empty()) return;  // nobody can be told
  try {
    server_.leave_job();
    communicators_.announce_leaving(base::concat("left after step ", server_.steps()));
  } catch (const std::exception& error) {  // nothing may leave a destructor
    base::log(base::LogLevel::kWarning,
              "not all ranks could be told that this one leaves: ", error.what());
  }
}

std::unique_ptr<server::Watchdog::Session> Runtime::watch(const Config& config,
                                                          std::function<void()> end_job) {
  const server::Watchdog::Limits limits{config.stall_seconds, config.abort_seconds,
                                        server::Watchdog::grace_after(config.abort_seconds)};
  return std::make_unique<server::Watchdog::Session>(limits, std::move(end_job));
}

Runtime* Runtime::find_current() noexcept { return current_runtime().get(); }

Runtime& Runtime::current() {
  auto* runtime = find_current();
  SMP_REQUIRE(runtime != nullptr || sessions() == 0,
              "this thread is none of a rank's: everything of smp is called on the thread that "
              "called smp::init, and not on one of std::thread or std::async");
  SMP_REQUIRE(runtime != nullptr, ended_sessions() == 0
                                      ? "no smp session runs; start with `auto session = "
                                        "smp::init(argc, argv);`"
                                      : "the smp session has ended; keep what smp::init returned "
                                        "alive (`auto session = ...`) until the last use of "
                                        "models, optimizers and steps");
  return *runtime;
}

d2d::Communicator Runtime::communicator(Group which) {
  return communicators_.group(d2d::Members(ranks_there(parts_, which), name_of(which)));
}

int Runtime::num_replicas() const noexcept {
  const bool alone = parts_.independent_pipelines || parts_.plan_request;
  return alone ? 1 : topology().dp_size();
}

bool Runtime::prints_less() const noexcept {
  const bool first =
      pp_rank().value() == 0 && (parts_.independent_pipelines || topology().dp_rank() == 0);
  return parts_.mpi != nullptr && !first;
}

GlobalRank Runtime::speaker() const {
  const auto which = parts_.independent_pipelines ? Group::kPp : Group::kWorld;
  return ranks_there(parts_, which).front();
}

std::vector<GlobalRank> ranks_of(const Topology& topology, Group which) {
  std::vector<GlobalRank> ranks;
  for (const int rank : topology.group(which)) ranks.emplace_back(rank);
  return ranks;
}

void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy) {
  d2d::Payload own;
  own.bytes.assign(reinterpret_cast<const char*>(&value), sizeof value);
  const auto all = ranks.all_gather(own, "the check that ranks agree");
  for (std::size_t i = 0; i < all.size(); ++i) {
    SMP_REQUIRE(all[i].bytes == all[0].bytes, "rank ", ranks.members()[static_cast<int>(i)],
                " and rank ", ranks.members()[0], " differ in ", what, "; ", remedy);
  }
}

}  // namespace smp
