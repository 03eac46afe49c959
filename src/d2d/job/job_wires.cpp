// d2d/job/job_wires.cpp: see the header.
#include "d2d/job/job_wires.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "d2d/job/gpu_wires.h"
#include "d2d/job/joint_step.h"
#include "d2d/job/network_wires.h"
#include "d2d/job/neuron_wires.h"
#include "d2d/watch/keep_alive_links.h"

namespace smp::d2d {
namespace {

InsteadOfMemory instead_of_memory(Network network) {
  switch (network) {
    case Network::kUcx:
      return {"UCX", ""};
    case Network::kOfi:
      return {"libfabric", ""};
    case Network::kMpi:
      break;
  }
  return {};
}

bool is_on_one_machine(const MpiSession& job) {
  const auto& machines = job.machine_of_rank();
  return std::all_of(machines.begin(), machines.end(),
                     [&](int machine) { return machine == machines.front(); });
}

void warn_of_unreached(const std::vector<std::string>& machines, const WarnOfRoutes& warn) {
  if (machines.empty()) return;
  std::string names;
  for (const auto& machine : machines) names += (names.empty() ? "'" : ", '") + machine + "'";
  const auto text = base::concat(
      "ranks of this machine cannot watch those of ", names,
      ", because no TCP connection could be made: if that machine falls silent, it is noticed "
      "when the transport gives up, or after abort_seconds; open TCP between the machines, name "
      "the network interface (keep_alive_interface), or set keep_alive_seconds = 0");
  if (warn) return warn(text);
  base::log(base::LogLevel::kWarning, text);
}

/// Connects the ranks of different machines; nullptr: no rank is to be watched.
std::unique_ptr<KeepAlive> watch_other_machines(const MpiSession& job,
                                                const RouteOptions& options) {
  if (options.keep_alive == 0 || is_on_one_machine(job)) return nullptr;
  std::optional<KeepAliveOffer> offer;
  JointStep(job, [&] { offer.emplace(options.keep_alive_interface, job.size()); }).require("", "");
  const KeepAliveMeeting meeting{job.rank(),
                                 job.machine_of_rank(),
                                 [&](const std::string& own) { return job.all_gather(own); },
                                 draw_secret(job),
                                 {.silence = options.keep_alive}};
  std::vector<std::string> unreached;
  try {
    auto keep_alive = connect_keep_alive(meeting, std::move(*offer), unreached);
    warn_of_unreached(unreached, options.warn);
    return keep_alive;
  } catch (const std::system_error& error) {
    base::log(base::LogLevel::kWarning, "rank ", job.rank(),
              " cannot watch those of other machines: ", error.what());
    return nullptr;
  }
}

}  // namespace

RouteOptions route_options(const std::string& transport, bool lend_tensors) {
  RouteOptions options;
  options.lend = lend_tensors;
  options.shared_memory = transport != "mpi";
  if (transport == "ucx") options.network = Network::kUcx;
  if (transport == "ofi") options.network = Network::kOfi;
  return options;
}

Routes fastest_routes(const MpiSession& job, const RouteOptions& options) {
  std::vector<WireUse> uses;
  std::unique_ptr<Loans> loans;
  if (auto shared = job.size() > 1 && options.shared_memory
                        ? connect_host_shm(job, options.warn, instead_of_memory(options.network))
                        : nullptr) {
    const HostShmWire& rings = *shared;
    uses.push_back({std::move(shared)});
    if (options.lend) loans = connect_loans(job, options.warn);
    if (options.device.is_cuda()) {
      auto gpus = connect_cuda_ipc(job, options.device, rings);
      if (gpus) uses.push_back({std::move(gpus), /*control=*/false});
    }
  }
  if (job.size() > 1 && options.neuron != nullptr) {
    uses.push_back({connect_neuron(job, *options.neuron, options.warn), /*control=*/false});
  }
  if (job.size() > 1 && options.network == Network::kUcx) uses.push_back({connect_ucx(job)});
  if (job.size() > 1 && options.network == Network::kOfi) uses.push_back({connect_ofi(job)});
  uses.push_back({job.connect_all()});
  return Routes(std::move(uses), std::move(loans), watch_other_machines(job, options));
}

}  // namespace smp::d2d
