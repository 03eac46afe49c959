// api/runtime.cpp: building a rank, and the checks at start.
#include "api/runtime.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "module/registry.h"
#include "smp/call.h"

namespace smp {
namespace {

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

int active_microbatches(const Runtime::Parts& parts) {
  return parts.config.values().active_microbatches.value_or(2 * parts.topology.pp_size() + 2);
}

}  // namespace

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      schedule_(
          schedule::make_schedule(parts_.config.values().pipeline, active_microbatches(parts_))),
      server_(*parts_.transport, server_options(parts_)) {
  auto& fiber = *base::current_fiber();
  SMP_REQUIRE(fiber.rank == nullptr,
              "smp::init was called twice on this rank; keep the session of "
              "the first call alive instead");
  module::require_distinct_calls();
  fiber.rank = &server_;
  server_.runtime = this;
  server_.delays_parameters = config().delayed_parameter_initialization;
  try {
    require_equal(call_registry_hash(), "the set of routed modules",
                  "start the same program file on every rank");
    require_equal(parts_.config.hash(), "the configuration",
                  "give every rank the same flags, environment and configuration file");
  } catch (...) {
    fiber.rank = nullptr;
    throw;
  }
}

Runtime::~Runtime() {
  server_.leave_job();
  if (auto* fiber = base::current_fiber()) fiber->rank = nullptr;
}

Runtime* Runtime::find_current() noexcept {
  auto* rank = base::current_rank();
  return rank == nullptr ? nullptr : static_cast<Runtime*>(rank->runtime);
}

Runtime& Runtime::current() {
  auto* runtime = find_current();
  SMP_REQUIRE(runtime != nullptr,
              "no smp session on this thread; start with `auto session = smp::init(argc, argv);`");
  return *runtime;
}

std::vector<int> Runtime::members(Group which) const {
  if (plan_request()) return {topology().rank()};
  return topology().group(which);
}

std::vector<int> Runtime::pp_ranks() const {
  if (plan_request()) return {topology().pp_rank()};
  std::vector<int> ranks;
  for (int rank = 0; rank < topology().pp_size(); ++rank) ranks.push_back(rank);
  return ranks;
}

void Runtime::require_equal(std::uint64_t value, const char* what, const char* remedy) {
  Packet own;
  own.bytes.assign(reinterpret_cast<const char*>(&value), sizeof value);
  const auto all = server_.collectives().all_gather(pp_ranks(), own, "the check that ranks agree");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SMP_REQUIRE(all[rank].bytes == all[0].bytes, "rank ", rank, " and rank 0 differ in ", what,
                "; ", remedy);
  }
}

}  // namespace smp
