// api/job_machine.cpp: configuration and topology to stages, hosts and messages.
#include "api/job_machine.h"

#include <ATen/Parallel.h>

#include <map>
#include <utility>
#include <vector>

#include "api/message_probe.h"
#include "api/runtime.h"

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

}  // namespace

simulate::Machine job_machine(Runtime& runtime) {
  const auto& config = runtime.config();
  simulate::Machine machine;
  machine.stages = runtime.topology().pp_size();
  machine.speeds = config.stage_speeds;
  machine.promised_outputs = runtime.server().core().options.promised_outputs;
  for (const double gib : config.stage_memory) {
    machine.memory.push_back(static_cast<std::int64_t>(gib * (1 << 30)));
  }
  if (machine.memory.size() == 1) machine.memory.assign(machine.stages, machine.memory[0]);
  if (runtime.cores() > 0) machine.oversubscribed = oversubscribed_hosts(runtime);
  if (config.trace_repeats > 0) return with_measured_messages(runtime, machine);
  if (!machine.oversubscribed.empty()) machine.latency = kLatencyWithoutCore;
  return machine;
}

}  // namespace smp
