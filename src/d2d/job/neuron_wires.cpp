// d2d/job/neuron_wires.cpp: see the header.
#include "d2d/job/neuron_wires.h"

#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/machine/tcp_socket.h"
#include "d2d/job/joint_step.h"
#include "d2d/wires/neuron/neuron_send_receive_wire.h"
#include "d2d/wires/neuron/neuron_staging_wire.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr std::array kPaths{NeuronPath::kSendReceive, NeuronPath::kStaging};
constexpr const char* kOwnHost = "127.0.0.1";

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

/// What a wire needs of a core; that of the other path is nullptr.
struct CoreParts {
  std::unique_ptr<NeuronSendReceive> send_receive;
  std::unique_ptr<NeuronCopies> copies;
};

CoreParts parts_for(NeuronPath path, const NeuronEnd& end, int peers) {
  CoreParts parts;
  if (path == NeuronPath::kSendReceive) {
    parts.send_receive = std::make_unique<NeuronSendReceive>(end.runtime, end.core, peers);
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
  return path == NeuronPath::kSendReceive ? "asynchronous send and receive" : "host memory";
}

}  // namespace

std::unique_ptr<Wire> connect_neuron(const MpiSession& job, const NeuronEnd& end, NeuronPath path,
                                     std::string& problem) {
  const auto addresses = addresses_of_all(job, end);
  CoreParts parts;
  const auto all_did = [&](const std::function<void()>& step) {
    problem = JointStep(job, step).problem();
    return problem.empty();
  };
  if (!all_did([&] { parts = parts_for(path, end, job.size() - 1); })) return nullptr;
  auto messages = job.connect_all();
  std::unique_ptr<Wire> wire;
  if (parts.copies) {
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
  for (const auto path : kPaths) {
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
