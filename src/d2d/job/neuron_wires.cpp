// d2d/job/neuron_wires.cpp: see the header.
#include "d2d/job/neuron_wires.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/machine/tcp_socket.h"
#include "d2d/job/joint_step.h"
#include "d2d/job/network_wires.h"
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"
#include "d2d/wires/neuron_paths/neuron_ofi_wire.h"
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr const char* kOwnHost = "127.0.0.1";
constexpr std::size_t kGathered = std::size_t{1} << 20;  // bytes of a collective, for each side
constexpr base::Nanoseconds kCollectivePatience = 60 * base::kSecond;

/// The paths to try, alike on all ranks. All ranks call it.
std::vector<NeuronPath> paths_of(const MpiSession& job) {
  std::vector<NeuronPath> paths{NeuronPath::kSendReceive, NeuronPath::kNetwork,
                                NeuronPath::kStaging};
  const auto named = job.all_gather(std::getenv("NEURON_RT_ROOT_COMM_ID") == nullptr ? "" : "1");
  const bool is_wanted =
      std::any_of(named.begin(), named.end(), [](const std::string& one) { return !one.empty(); });
  if (is_wanted) paths.insert(paths.begin(), NeuronPath::kCollectives);
  return paths;
}

/// The address of this host for ranks of others.
std::string own_address() {
  const auto all = base::network_addresses();
  return all.empty() ? kOwnHost : all.front().address;
}

/// Where the cores of all ranks are, as this rank names them. All ranks call it.
std::vector<NeuronAddress> addresses_of_all(const MpiSession& job, const NeuronEnd& end) {
  const auto core = end.runtime.claim().absolute(end.core);
  const auto texts = job.all_gather(base::concat(core, ' ', own_address()));
  const auto& machines = job.machine_of_rank();
  std::vector<NeuronAddress> all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto gap = texts[i].find(' ');
    const bool is_here = machines[i] == machines[job.rank().index()];
    all.push_back({is_here ? kOwnHost : texts[i].substr(gap + 1),
                   AbsoluteCore(std::stoi(texts[i].substr(0, gap)))});
  }
  return all;
}

/// What a wire needs of a core; that of other paths is nullptr.
struct CoreParts {
  std::unique_ptr<NeuronGathers> gathers{};
  std::unique_ptr<NeuronSendReceive> send_receive{};
  std::unique_ptr<NeuronCopies> copies{};
};

CoreParts parts_for(NeuronPath path, const NeuronEnd& end, const MpiSession& job) {
  CoreParts parts;
  if (path == NeuronPath::kCollectives) {
    const auto& machines = job.machine_of_rank();
    SMP_REQUIRE_AS(PeerLostError,
                   std::count(machines.begin(), machines.end(), machines.front()) == job.size(),
                   "the ranks are on several machines, and NeuronLink is within one");
    parts.gathers =
        std::make_unique<NeuronGathers>(end.runtime, end.core, kGathered, kCollectivePatience);
  } else if (path == NeuronPath::kSendReceive) {
    parts.send_receive = std::make_unique<NeuronSendReceive>(end.runtime, end.core, job.size() - 1);
  } else {
    parts.copies = std::make_unique<NeuronCopies>(end.runtime, end.core);
  }
  return parts;
}

void try_wire(Wire& wire, const NeuronEnd& end) {
  const auto wrong = probe(wire, kProbePatience, end.probe_memory());
  SMP_REQUIRE_AS(PeerLostError, wrong.empty(), wrong);
}

const char* name_of(NeuronPath path) {
  switch (path) {
    case NeuronPath::kCollectives:
      return "collectives of two cores";
    case NeuronPath::kSendReceive:
      return "asynchronous send and receive";
    case NeuronPath::kNetwork:
      return "libfabric with Neuron memory";
    case NeuronPath::kStaging:
      break;
  }
  return "host memory";
}

}  // namespace

namespace {

/// All ranks call it. @return nullptr: see `problem`
std::unique_ptr<Wire> connect_network(const MpiSession& job, const NeuronEnd& end,
                                      std::string& problem) {
  const auto all_did = [&](const std::function<void()>& step) {
    problem = JointStep(job, step).problem();
    return problem.empty();
  };
  std::unique_ptr<NeuronEndpoint> endpoint;
  const auto open = [&] { endpoint = std::make_unique<NeuronEndpoint>(end.runtime, end.places); };
  if (!all_did(open)) return nullptr;
  const auto addresses = job.all_gather(endpoint->address());
  OfiWireOptions options;
  options.secret = draw_secret(job);
  std::unique_ptr<Wire> wire;
  const auto connect = [&] {
    auto& memory = *endpoint;
    auto network = std::make_unique<OfiWire>(job.rank(), Members::all(job.size()),
                                             std::move(endpoint), addresses, options);
    wire = std::make_unique<NeuronOfiWire>(std::move(network), memory, end.places);
  };
  if (!all_did(connect) || !all_did([&] { try_wire(*wire, end); })) return nullptr;
  return wire;
}

}  // namespace

std::unique_ptr<Wire> connect_neuron(const MpiSession& job, const NeuronEnd& end, NeuronPath path,
                                     std::string& problem) {
  if (path == NeuronPath::kNetwork) return connect_network(job, end, problem);
  const auto addresses = addresses_of_all(job, end);
  CoreParts parts;
  const auto all_did = [&](const std::function<void()>& step) {
    problem = JointStep(job, step).problem();
    return problem.empty();
  };
  if (!all_did([&] { parts = parts_for(path, end, job); })) return nullptr;
  const auto join = [&] { parts.gathers->join(job.rank().value(), job.size()); };
  if (parts.gathers && !all_did(join)) return nullptr;
  auto messages = job.connect_all();
  std::unique_ptr<Wire> wire;
  if (parts.gathers) {
    wire = std::make_unique<NeuronCollectiveWire>(std::move(messages), std::move(parts.gathers),
                                                  end.places);
  } else if (parts.copies) {
    wire = std::make_unique<NeuronStagingWire>(std::move(messages), std::move(parts.copies),
                                               end.places);
  } else {
    auto made = std::make_unique<NeuronSendReceiveWire>(std::move(messages),
                                                        std::move(parts.send_receive), end.places);
    auto& connecting = *made;
    wire = std::move(made);
    if (!all_did([&] { connecting.connect(addresses); })) return nullptr;
  }
  if (!all_did([&] { try_wire(*wire, end); })) return nullptr;
  return wire;
}

std::unique_ptr<Wire> connect_neuron(const MpiSession& job, const NeuronEnd& end,
                                     const WarnOfRoutes& warn) {
  std::string problems;
  for (const auto path : paths_of(job)) {
    std::string problem;
    auto wire = connect_neuron(job, end, path, problem);
    if (wire && problems.empty()) return wire;
    if (wire) {
      const auto text =
          base::concat("tensors of Neuron cores go through ", name_of(path), ": ", problems);
      if (warn) {
        warn(text);
      } else if (job.rank().value() == 0) {
        base::log(base::LogLevel::kWarning, text);
      }
      return wire;
    }
    problems +=
        base::concat(problems.empty() ? "" : "; ", name_of(path), " did not work: ", problem);
  }
  throw PeerLostError(
      base::concat("rank ", job.rank(), ": no path between Neuron cores works: ", problems));
}

}  // namespace smp::d2d
