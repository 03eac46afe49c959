// api/job_machine.cpp: configuration and topology to stages, hosts and messages.
#include "api/job_machine.h"

#include <ATen/Parallel.h>

#include <map>
#include <utility>
#include <vector>

#include "api/message_probe.h"
#include "api/runtime.h"
#include "base/machine_memory.h"

namespace smp {
namespace {

/// Seconds until a message is seen by a rank that must get a core first: what 4 idle ranks on 2
/// cores measure.
constexpr double kLatencyWithoutCore = 800e-6;

/// Hosts with fewer cores than ranks. Ranks of other pipelines get their share of the cores; every
/// host has as many as this one, and every rank computes on the same number of them.
std::vector<simulate::Machine::Host> oversubscribed_hosts(const Runtime& runtime) {
  const auto& topology = runtime.topology();
  const double places = static_cast<double>(runtime.cores()) / at::get_num_threads();
  std::map<int, simulate::Machine::Host> by_first_rank;
  const auto ranks = topology.group(Group::kPp);
  for (int stage = 0; stage < static_cast<int>(ranks.size()); ++stage) {
    const auto neighbours = topology.group(Group::kLocal, ranks[stage]);
    if (static_cast<double>(neighbours.size()) <= places) continue;
    auto& host = by_first_rank[neighbours.front()];
    host.stages.push_back(stage);
    host.cores += places / static_cast<double>(neighbours.size());
  }
  std::vector<simulate::Machine::Host> hosts;
  hosts.reserve(by_first_rank.size());
  for (auto& [rank, host] : by_first_rank) hosts.push_back(std::move(host));
  return hosts;
}

/// As configured; else that of this machine, of which every rank on a host gets the same. A job
/// that is only planned runs elsewhere: nothing is known of its machines.
std::vector<std::int64_t> memory_of_stages(const Runtime& runtime) {
  const auto& configured = runtime.config().stage_memory;
  const auto ranks = runtime.topology().group(Group::kPp);
  std::vector<std::int64_t> memory;
  for (const double gib : configured) {
    memory.push_back(static_cast<std::int64_t>(gib * (1 << 30)));
  }
  if (memory.size() == 1) memory.assign(ranks.size(), memory[0]);
  const auto bytes = base::machine_memory();
  if (!configured.empty() || runtime.plan_request() || bytes == 0) return memory;
  for (const auto rank : ranks) {
    const auto neighbours = runtime.topology().group(Group::kLocal, rank).size();
    memory.push_back(bytes / static_cast<std::int64_t>(neighbours));
  }
  return memory;
}

}  // namespace

simulate::Machine job_machine(Runtime& runtime) {
  const auto& config = runtime.config();
  simulate::Machine machine;
  machine.stages = runtime.topology().pp_size();
  machine.speeds = config.stage_speeds;
  machine.promised_outputs = runtime.server().core().options.promised_outputs;
  machine.memory = memory_of_stages(runtime);
  if (runtime.cores() > 0) machine.oversubscribed = oversubscribed_hosts(runtime);
  if (config.trace_repeats > 0) return with_measured_messages(runtime, machine);
  if (!machine.oversubscribed.empty()) machine.latency = kLatencyWithoutCore;
  return machine;
}

}  // namespace smp
