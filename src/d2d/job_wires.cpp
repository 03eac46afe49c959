// d2d/job_wires.cpp: what one machine or network refuses, no rank uses.
#include "d2d/job_wires.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <mpi.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/cross_memory.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/shared_memory_refusal.h"
#include "d2d/heap_allocator.h"
#include "d2d/keep_alive_links.h"
#include "d2d/wire_probe.h"
#include "d2d/wires/cuda_driver.h"
#include "d2d/wires/cuda_ipc_wire.h"
#include "d2d/wires/mpi_communicator.h"
#include "d2d/wires/ofi_wire.h"
#include "d2d/wires/ucx_wire.h"

namespace smp::d2d {
namespace {

constexpr base::Nanoseconds kProbePatience = 20 * base::kSecond;

/// A step that every rank takes, each with the others. What goes wrong on one of them all hear of,
/// so that nobody waits for that rank.
class JointStep {
 public:
  /// All ranks call it. @throws nothing that `step` throws
  JointStep(const MpiSession& job, const std::function<void()>& step) {
    std::string text;
    try {
      step();
    } catch (const PeerLostError& error) {
      text = error.what();
    } catch (const std::exception& error) {
      text = error.what();
      own_ = std::current_exception();
    }
    const auto texts = job.all_gather(text);
    const auto first =
        std::find_if(texts.begin(), texts.end(), [](const auto& other) { return !other.empty(); });
    if (first == texts.end()) return;
    rank_ = static_cast<int>(first - texts.begin());
    text_ = *first;
  }

  /// The first rank's for which it went wrong, or nothing.
  std::string problem() const {
    return rank_ < 0 ? std::string() : base::concat("rank ", rank_, ": ", text_);
  }
  /// @throws  this rank's own exception; or PeerLostError, with that of another
  void require(const std::string& what, const std::string& remedy) const {
    if (own_) std::rethrow_exception(own_);
    SMP_REQUIRE_AS(PeerLostError, rank_ < 0, "rank ", rank_, ": ", what, text_, remedy);
  }

 private:
  std::exception_ptr own_;
  int rank_ = -1;
  std::string text_;
};

// ---- on a machine ----

bool all_say(bool yes, const MpiCommunicator& ranks) {
  int all = yes ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, ranks.get()), "agreeing");
  return all == 1;
}

/// `bytes` of each rank of `host`, mapped here, in order; fewer where the machine refuses some. All
/// of them call it, and go on offering their own.
/// @param refusal  what was refused to this rank; what another one does not offer is its affair
std::vector<base::SharedMemory> exchange_memory(std::size_t bytes, const MpiCommunicator& host,
                                                base::MemoryRefusal& refusal) {
  auto own = base::SharedMemory::make(bytes);
  if (!own) refusal = base::refusal_to_make(errno, bytes, base::longest_file());
  std::vector<base::SharedMemory::Address> addresses(static_cast<std::size_t>(host.size()));
  const auto address = own ? own->address() : base::SharedMemory::Address();
  check_mpi(MPI_Allgather(&address, sizeof address, MPI_BYTE, addresses.data(), sizeof address,
                          MPI_BYTE, host.get()),
            "sharing memory");
  std::vector<base::SharedMemory> all;
  for (int i = 0; i < host.size(); ++i) {
    const auto& of_rank = addresses[static_cast<std::size_t>(i)];
    auto memory = i == host.rank() ? std::exchange(own, std::nullopt)
                                   : base::SharedMemory::open(of_rank, bytes);
    const bool offered = of_rank.file != 0;
    if (!memory && offered && refusal.reason.empty()) refusal = base::refusal_to_open(errno);
    if (memory) all.push_back(std::move(*memory));
  }
  return all;
}

/// Which made `memory`.
std::vector<std::int64_t> processes_of(const std::vector<base::SharedMemory>& memory) {
  std::vector<std::int64_t> processes;
  processes.reserve(memory.size());
  for (const auto& each : memory) processes.push_back(each.address().process);
  return processes;
}

/// Really reads some of each. All ranks of `host` call it.
bool can_read_memory_of(const std::vector<std::int64_t>& processes, const MpiCommunicator& host) {
  const std::int64_t& own = processes[static_cast<std::size_t>(host.rank())];
  const auto own_address = reinterpret_cast<std::uint64_t>(&own);
  std::vector<std::uint64_t> addresses(processes.size());
  check_mpi(MPI_Allgather(&own_address, sizeof own_address, MPI_BYTE, addresses.data(),
                          sizeof own_address, MPI_BYTE, host.get()),
            "reading memory of other ranks");
  bool can = true;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    std::int64_t read = 0;
    can = can &&
          base::read_process_memory(processes[i], addresses[i],
                                    std::as_writable_bytes(std::span(&read, 1))) &&
          read == processes[i];
  }
  check_mpi(MPI_Barrier(host.get()), "reading memory of other ranks");  // what is read stays
  return can;
}

std::unique_ptr<HostShmWire> share_rings(const MpiSession& job, const HostShmOptions& options,
                                         const HostShmWire* beside, base::MemoryRefusal& refusal) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(job.world().get());
  auto segments = exchange_memory(HostShmSegment::bytes_for(host.size(), options), host, refusal);
  // All have it, or nobody uses it: ranks number their wires alike.
  if (!all_say(segments.size() == static_cast<std::size_t>(host.size()), job.world()))
    return nullptr;
  HostShmProcesses processes{processes_of(segments)};
  processes.may_read_each_other = all_say(can_read_memory_of(processes.numbers, host), host);
  segments[static_cast<std::size_t>(host.rank())].stop_offering();
  std::unique_ptr<HostShmWire> wire;
  try {
    wire = std::make_unique<HostShmWire>(job.rank(), job.ranks_of_this_host(), std::move(segments),
                                         options, std::move(processes), beside);
  } catch (const std::exception& error) {  // no thread to watch processes, say
    base::log(base::LogLevel::kWarning, "rank ", job.rank(), ": no shared memory: ", error.what());
  }
  return all_say(wire != nullptr, job.world()) ? std::move(wire) : nullptr;
}

/// If something was refused to this rank. The others only follow, and say nothing.
/// @param loss  what the job does without
/// @param setting  that asks for the same; empty: none
void warn_of(const base::MemoryRefusal& refusal, const std::string& loss,
             const std::string& setting, const WarnOfRoutes& warn) {
  if (refusal.reason.empty()) return;
  auto text = base::concat(loss, ": ", refusal.reason);
  if (!refusal.remedy.empty()) text += "; remedy: " + refusal.remedy;
  if (!setting.empty()) text += base::concat("; or ", setting, " if that is wanted");
  if (warn) return warn(text);
  base::log(base::LogLevel::kWarning, text);
}

const char* name_of(Network network) {
  switch (network) {
    case Network::kUcx:
      return "UCX";
    case Network::kOfi:
      return "libfabric";
    case Network::kMpi:
      break;
  }
  return "MPI";
}

/// @param instead  carries what shared memory does not
std::unique_ptr<HostShmWire> connect_rings(const MpiSession& job, Network instead,
                                           const WarnOfRoutes& warn) {
  base::MemoryRefusal refusal;
  auto wire = share_rings(job, {}, nullptr, refusal);
  warn_of(refusal,
          base::concat("ranks of this machine cannot share memory, so the whole job uses ",
                       name_of(instead), ", which is slower"),
          instead == Network::kMpi ? "transport = mpi" : "", warn);
  if (!wire) return nullptr;
  // What shared memory does not carry, MPI will.
  const auto wrong = probe(*wire, kProbePatience);
  if (!wrong.empty()) {
    base::log(base::LogLevel::kWarning, "shared memory does not work here, MPI is used: ", wrong);
  }
  if (!all_say(wrong.empty(), job.world())) return nullptr;
  return wire;
}

/// @return what is to be lent; nullptr: see `refusal`
std::unique_ptr<Loans> make_loans(base::MemoryRefusal& refusal) {
  auto* const heap = HeapAllocator::install();
  if (heap == nullptr) {
    refusal = HeapAllocator::refusal();
    return nullptr;
  }
  auto loans = Loans::make(heap);
  if (!loans) refusal = base::refusal_to_make(errno, 0, base::longest_file());
  return loans;
}

}  // namespace

std::unique_ptr<HostShmWire> connect_host_shm(const MpiSession& job, const WarnOfRoutes& warn) {
  return connect_rings(job, Network::kMpi, warn);
}

std::unique_ptr<Loans> connect_loans(const MpiSession& job, const WarnOfRoutes& warn) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(job.world().get());
  base::MemoryRefusal refusal;
  auto loans = make_loans(refusal);
  const auto own = loans ? loans->offer() : Loans::Offer();
  std::vector<Loans::Offer> offers(static_cast<std::size_t>(host.size()));
  check_mpi(
      MPI_Allgather(&own, sizeof own, MPI_BYTE, offers.data(), sizeof own, MPI_BYTE, host.get()),
      "offering memory");
  const bool connected = loans && loans->connect(job.rank(), job.ranks_of_this_host(), offers);
  const bool all_offer = std::all_of(offers.begin(), offers.end(),
                                     [](const auto& offer) { return offer.heap_bytes > 0; });
  if (!connected && all_offer) refusal = base::refusal_to_open(errno);
  warn_of(refusal, "ranks of this machine copy large tensors instead of lending them",
          "lend_tensors = false", warn);
  if (!all_say(connected, host)) return nullptr;
  loans->stop_offering();
  return loans;
}

// ---- between GPUs of a machine ----

namespace {

/// While it lives, another stream is LibTorch's current one: what is put there and never done
/// stands in nobody's way.
class OtherStream {
 public:
  explicit OtherStream(c10::Device device)
      : guard_(device.type()),
        outer_(guard_.exchangeStream(guard_.getStreamFromGlobalPool(device))) {}
  ~OtherStream() { guard_.exchangeStream(outer_); }
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream outer_;
};

void require_carried(CudaIpcWire& wire, c10::Device device) {
  const OtherStream stream(device);
  const auto wrong = probe(wire, kProbePatience, wire.probe_memory());
  SMP_REQUIRE_AS(PeerLostError, wrong.empty(), wrong);
}

/// `own` of each of `members`, in their order. All ranks call it.
std::vector<std::string> gather_from(const MpiSession& job, const Members& members,
                                     const std::string& own) {
  const auto all = job.all_gather(own);
  std::vector<std::string> texts;
  for (const GlobalRank member : members) texts.push_back(all[member.index()]);
  return texts;
}

/// @param problem  of some rank, if nothing is returned
std::unique_ptr<Wire> try_cuda_ipc(const MpiSession& job, c10::Device device,
                                   const HostShmWire& beside, bool shared_events,
                                   std::string& problem) {
  base::MemoryRefusal refusal;
  auto messages = share_rings(job, {.blocks = 1}, &beside, refusal);
  if (!messages) {
    problem = refusal.reason.empty() ? "the machine refuses shared memory" : refusal.reason;
    return nullptr;
  }
  const Members members = messages->members();
  const auto all_did = [&](const std::function<void()>& step) {
    const JointStep taken(job, step);
    problem = taken.problem();
    return problem.empty();
  };
  std::unique_ptr<CudaDriver> driver;
  std::string gpu;
  const auto find_gpu = [&] {
    driver = std::make_unique<CudaDriver>(device);
    gpu = driver->identity();
  };
  if (!all_did(find_gpu)) return nullptr;
  const auto gpus = gather_from(job, members, gpu);
  std::unique_ptr<CudaIpcWire> wire;
  std::string offer;
  const auto set_aside = [&] {
    wire = std::make_unique<CudaIpcWire>(std::move(messages), std::move(driver), gpus,
                                         CudaIpcOptions{.shared_events = shared_events});
    offer = wire->offer();
  };
  if (!all_did(set_aside)) return nullptr;
  const auto offers = gather_from(job, members, offer);
  if (!all_did([&] { wire->connect(offers); })) {
    wire->disconnect();
    job.barrier();  // nobody frees what another has open
    return nullptr;
  }
  // If not, it frees nothing: its copies may never be done.
  if (!all_did([&] { require_carried(*wire, device); })) return nullptr;
  return wire;
}

}  // namespace

std::unique_ptr<Wire> connect_cuda_ipc(const MpiSession& job, c10::Device device,
                                       const HostShmWire& beside) {
  std::string with_events, without;
  auto wire = try_cuda_ipc(job, device, beside, /*shared_events=*/true, with_events);
  if (!wire) wire = try_cuda_ipc(job, device, beside, /*shared_events=*/false, without);
  if (!with_events.empty() && job.rank().value() == 0) {
    base::log(base::LogLevel::kWarning,
              wire ? "GPUs of a machine cannot wait for each other here, each piece of a tensor is "
                     "announced when it is there: "
                   : "GPUs of a machine cannot reach each other's memory here, tensors go through "
                     "host memory: ",
              with_events, without == with_events || without.empty() ? "" : "; " + without);
  }
  return wire;
}

// ---- between machines ----

namespace {

/// A wire may hold back what it calls sent until it is polled again. All ranks call it.
/// @return what was wrong meanwhile
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

/// By which ranks of the job know each other, told over MPI: networks carry messages of anyone who
/// has learnt an address.
std::uint64_t secret_of(const MpiSession& job) {
  std::uint64_t own = 0;
  if (job.rank() == GlobalRank(0)) {
    std::random_device source;
    own = std::uint64_t{source()} << 32 | source();
  }
  return std::stoull(job.all_gather(std::to_string(own))[0]);
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

/// Every rank makes an endpoint, tells all its address, and tries the wire.
/// @param variables  of the environment, by which a user may help
template <class Endpoint>
std::unique_ptr<Wire> connect_network(const MpiSession& job, const char* name,
                                      const char* variables) {
  const auto what = base::concat("trying ", name, ": ");
  const auto remedy = base::concat("; look at ", variables, ", or use transport = auto");
  std::unique_ptr<Endpoint> endpoint;
  JointStep(job, [&] { endpoint = std::make_unique<Endpoint>(); }).require("", "");
  const auto addresses = job.all_gather(endpoint->address());
  const auto secret = secret_of(job);
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

namespace {

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

/// nullptr: nobody is to be watched.
std::unique_ptr<KeepAlive> watch_other_machines(const MpiSession& job,
                                                const RouteOptions& options) {
  if (options.keep_alive == 0 || is_on_one_machine(job)) return nullptr;
  std::optional<KeepAliveOffer> offer;
  JointStep(job, [&] { offer.emplace(options.keep_alive_interface, job.size()); }).require("", "");
  const KeepAliveMeeting meeting{job.rank(),
                                 job.machine_of_rank(),
                                 [&](const std::string& own) { return job.all_gather(own); },
                                 secret_of(job),
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
                        ? connect_rings(job, options.network, options.warn)
                        : nullptr) {
    const HostShmWire& rings = *shared;
    uses.push_back({std::move(shared)});
    if (options.lend) loans = connect_loans(job, options.warn);
    if (options.device.is_cuda()) {
      auto gpus = connect_cuda_ipc(job, options.device, rings);
      if (gpus) uses.push_back({std::move(gpus), /*control=*/false});
    }
  }
  if (job.size() > 1 && options.network == Network::kUcx) uses.push_back({connect_ucx(job)});
  if (job.size() > 1 && options.network == Network::kOfi) uses.push_back({connect_ofi(job)});
  uses.push_back({job.connect_all()});
  return Routes(std::move(uses), std::move(loans), watch_other_machines(job, options));
}

}  // namespace smp::d2d
