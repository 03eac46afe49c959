// d2d/job/network_wires.cpp: see the header.
#include "d2d/job/network_wires.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/job/joint_step.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/mpi/mpi_communicator.h"
#include "d2d/wires/ofi/ofi_wire.h"
#include "d2d/wires/ucx/ucx_wire.h"

namespace smp::d2d {
namespace {

/// Polls until all ranks have come, since a wire may hold back bytes that it calls sent until it is
/// polled again. All ranks call it.
/// @return the problem that came up meanwhile, or nothing
std::string poll_until_all_come(const MpiSession& job, Wire& wire, base::Nanoseconds patience) try {
  const base::SteadyClock clock;
  const base::Nanoseconds end = clock.now() + patience;
  MpiMeeting meeting(job.world());
  for (int idle = 0; !meeting.complete() && clock.now() < end; ++idle) {
    if (wire.poll()) idle = 0;
    wait_politely(idle);
  }
  return {};
} catch (const PeerLostError& error) {
  return error.what();
}

std::unique_ptr<Wire> make_wire(const MpiSession& job, std::unique_ptr<UcxWorker> worker,
                                const std::vector<std::string>& addresses, std::uint64_t secret) {
  return std::make_unique<UcxWire>(job.rank(), Members::all(job.size()), std::move(worker),
                                   addresses, secret);
}

std::unique_ptr<Wire> make_wire(const MpiSession& job, std::unique_ptr<OfiEndpoint> endpoint,
                                const std::vector<std::string>& addresses, std::uint64_t secret) {
  OfiWireOptions options;
  options.secret = secret;
  return std::make_unique<OfiWire>(job.rank(), Members::all(job.size()), std::move(endpoint),
                                   addresses, options);
}

/// Connects a network: every rank makes an endpoint, tells all its address, and tries the wire.
/// @param variables  the environment variables by which a user may help
template <class Endpoint>
std::unique_ptr<Wire> connect_network(const MpiSession& job, const char* name,
                                      const char* variables) {
  const auto what = base::concat("trying ", name, ": ");
  const auto remedy = base::concat("; look at ", variables, ", or use transport = auto");
  std::unique_ptr<Endpoint> endpoint;
  JointStep(job, [&] { endpoint = std::make_unique<Endpoint>(); }).require("", "");
  const auto addresses = job.all_gather(endpoint->address());
  const auto secret = draw_secret(job);
  std::unique_ptr<Wire> wire;
  JointStep(job, [&] {
    wire = make_wire(job, std::move(endpoint), addresses, secret);
  }).require(what, remedy);
  JointStep(job, [&] {
    const auto wrong = probe(*wire, kProbePatience);
    const auto later = poll_until_all_come(job, *wire, 2 * kProbePatience);
    if (!wrong.empty() || !later.empty()) throw PeerLostError(wrong.empty() ? later : wrong);
  }).require(what, remedy);
  return wire;
}

}  // namespace

std::unique_ptr<Wire> connect_ucx(const MpiSession& job) {
  return connect_network<UcxWorker>(job, "UCX", "UCX_TLS and UCX_NET_DEVICES");
}

std::unique_ptr<Wire> connect_ofi(const MpiSession& job) {
  return connect_network<OfiEndpoint>(job, "libfabric", "FI_PROVIDER and FI_TCP_IFACE");
}

std::uint64_t draw_secret(const MpiSession& job) {
  std::uint64_t own = 0;
  if (job.rank() == GlobalRank(0)) {
    std::random_device source;
    own = std::uint64_t{source()} << 32 | source();
  }
  return all_gather(own, job.world(), "drawing a secret")[0];
}

}  // namespace smp::d2d
