// api/runtime.cpp: building a rank, and the checks at start.
#include "api/runtime.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "module/registry.h"
#include "smp/call.h"

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
  return options;
}

/// While a job is planned, this rank is alone.
std::vector<GlobalRank> ranks_there(const Runtime::Parts& parts, Group which) {
  if (parts.plan_request) return {GlobalRank(parts.topology.rank())};
  return ranks_of(parts.topology, which);
}

}  // namespace

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      current_(current_runtime(), this),
      communicators_(*parts_.channel),
      schedule_(schedule::make_schedule(parts_.config.values().pipeline,
                                        parts_.config.values().active_microbatches.value())),
      server_(*parts_.channel, ranks_there(parts_, Group::kPp), server_options(parts_),
              [this](const std::string& why) { communicators_.abort(why); }) {
  module::require_distinct_calls();
  if (!config().delayed_parameter_initialization) eager_.emplace();
  const auto all = communicator(Group::kWorld);
  require_equal(all, call_registry_hash(), "the set of routed modules",
                "start the same program file on every rank");
  require_equal(all, parts_.config.hash(), "the configuration",
                "give every rank the same flags, environment and configuration file");
}

Runtime::~Runtime() {
  server_.leave_job();
  communicators_.announce_leaving(base::concat("left after step ", server_.steps()));
}

Runtime* Runtime::find_current() noexcept { return current_runtime().get(); }

Runtime& Runtime::current() {
  auto* runtime = find_current();
  SMP_REQUIRE(runtime != nullptr,
              "no smp session on this thread; start with `auto session = smp::init(argc, argv);`");
  return *runtime;
}

d2d::Communicator Runtime::communicator(Group which) {
  return communicators_.group(d2d::Members(ranks_there(parts_, which)));
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
