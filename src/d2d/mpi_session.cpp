// d2d/mpi_session.cpp: see the header.
#include "d2d/mpi_session.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/cross_memory.h"
#include "base/log.h"
#include "d2d/heap_allocator.h"
#include "d2d/loans.h"
#include "d2d/wire_probe.h"
#include "d2d/wires/cuda_driver.h"
#include "d2d/wires/cuda_ipc_wire.h"
#include "d2d/wires/host_shm_wire.h"
#include "d2d/wires/ofi_wire.h"
#include "d2d/wires/ucx_wire.h"

namespace smp::d2d {
namespace {

constexpr base::Nanoseconds kProbePatience = 20 * base::kSecond;

/// Open MPI ends a process that finds no room there, and its launcher may keep its words for
/// itself.
void warn_of_little_shared_memory() noexcept {
  constexpr std::uint64_t kSegment = 5 << 20;  // of each rank; Open MPI takes 4 MiB and a little
  const char* const local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  struct statvfs room {};
  if (local_rank == nullptr || std::string(local_rank) != "0") return;
  if (::statvfs("/dev/shm", &room) != 0) return;
  const auto free = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
  if (free >= kSegment) return;
  std::fprintf(stderr,
               "smp: /dev/shm has room for %llu KiB, and Open MPI needs about 4 MiB there for each "
               "rank: if the job ends now, make it larger (docker run --shm-size=1g) or name "
               "another folder (mpirun --mca btl_vader_backing_directory DIR)\n",
               static_cast<unsigned long long>(free >> 10));
}

/// A connection that was cut is MPI's affair, and no reason to end without a word.
void outlive_broken_pipes() noexcept {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

// True if MPI was not running and now is.
bool start_mpi() {
  int running = 0;
  int over = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&over);
  SMP_REQUIRE(!over,
              "starting smp: MPI was already finalized in this process, and it cannot be "
              "started twice; keep the first session alive, or finalize MPI later.");
  if (running) return false;
  warn_of_little_shared_memory();
  outlive_broken_pipes();
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "starting MPI");
  return true;
}

std::vector<int> machines_of(const MpiCommunicator& world) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world.get());
  int machine = world.rank();  // the first rank of a host tells the others
  check_mpi(MPI_Bcast(&machine, 1, MPI_INT, 0, host.get()), "naming machines");
  std::vector<int> machines(world.size());
  check_mpi(MPI_Allgather(&machine, 1, MPI_INT, machines.data(), 1, MPI_INT, world.get()),
            "naming machines");
  return machines;
}

bool all_say(bool yes, const MpiCommunicator& ranks) {
  int all = yes ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, ranks.get()), "agreeing");
  return all == 1;
}

/// `bytes` of each rank of `host`, mapped here, in order; fewer where the machine refuses some. All
/// of them call it, and go on offering their own.
std::vector<base::SharedMemory> exchange_memory(std::size_t bytes, const MpiCommunicator& host) {
  auto own = base::SharedMemory::make(bytes);
  std::vector<base::SharedMemory::Address> addresses(static_cast<std::size_t>(host.size()));
  const auto address = own ? own->address() : base::SharedMemory::Address();
  check_mpi(MPI_Allgather(&address, sizeof address, MPI_BYTE, addresses.data(), sizeof address,
                          MPI_BYTE, host.get()),
            "sharing memory");
  std::vector<base::SharedMemory> all;
  for (int i = 0; i < host.size(); ++i) {
    auto memory = i == host.rank()
                      ? std::exchange(own, std::nullopt)
                      : base::SharedMemory::open(addresses[static_cast<std::size_t>(i)], bytes);
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

}  // namespace

MpiSession::MpiSession()
    : started_mpi_(start_mpi()),
      exceptions_at_start_(std::uncaught_exceptions()),
      world_(MpiCommunicator::duplicate(MPI_COMM_WORLD)),
      rank_(world_.rank()),
      machine_of_rank_(machines_of(world_)) {
  // An MPI of the user's may end after this session, without our help.
  if (started_mpi_) segments_.hide(MpiCommunicator::of_this_host(world_.get()));
}

int MpiSession::local_size() const noexcept {
  return static_cast<int>(std::count(machine_of_rank_.begin(), machine_of_rank_.end(),
                                     machine_of_rank_[rank_.index()]));
}

int MpiSession::local_rank() const noexcept {
  const auto own = machine_of_rank_.begin() + rank_.value();
  return static_cast<int>(std::count(machine_of_rank_.begin(), own, *own));
}

MpiSession::~MpiSession() {
  int over = 0;
  MPI_Finalized(&over);
  if (!started_mpi_ || over || job_ends_at_exit()) return;
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const MpiWireOptions deadlines;
  segments_.give_back();
  if (!meet_to_finalize(unwinding ? deadlines.unwind_deadline : deadlines.leave_deadline)) {
    std::fprintf(stderr, "smp: rank %d ends%s, and not all other ranks do: ending the whole job.\n",
                 rank_.value(), unwinding ? " because of an exception" : "");
    if (!unwinding) abort(1);
    end_job_at_exit();
    return;
  }
  world_ = {};
  MPI_Finalize();
}

bool MpiSession::meet_to_finalize(base::Nanoseconds deadline) const try {
  const base::SteadyClock clock;
  const base::Nanoseconds end = clock.now() + deadline;
  MpiMeeting meeting(world_);
  for (int idle = 0; !meeting.complete(); ++idle) {
    if (clock.now() > end) return false;
    wait_politely(idle);
  }
  return true;
} catch (const PeerLostError& error) {
  std::fprintf(stderr, "smp: rank %d: %s\n", rank_.value(), error.what());
  return false;
}

std::unique_ptr<Wire> MpiSession::connect(const Members& members, MpiWireOptions options) const {
  for (const GlobalRank member : members) {
    SMP_REQUIRE(member.value() < size(), "rank ", rank_, ": connecting the ranks ", members,
                ": they must be within 0 and ", size() - 1, ", the ranks of the job.");
  }
  SMP_REQUIRE(members.contain(rank_), "rank ", rank_, ": connecting the ranks ", members,
              ": it is not one of them; only the ranks to be connected call this.");
  const MpiCommunicator group = MpiCommunicator::subgroup(world_.get(), members);
  return std::make_unique<MpiWire>(group.get(), members, options);
}

std::unique_ptr<Wire> MpiSession::connect_all(MpiWireOptions options) const {
  return connect(Members::all(size()), options);
}

std::unique_ptr<HostShmWire> MpiSession::share_rings(const HostShmOptions& options,
                                                     const HostShmWire* beside) const {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world_.get());
  auto segments = exchange_memory(HostShmSegment::bytes_for(host.size(), options), host);
  // All have it, or nobody uses it: ranks number their wires alike.
  if (!all_say(segments.size() == static_cast<std::size_t>(host.size()), world_)) return nullptr;
  HostShmProcesses processes{processes_of(segments)};
  processes.may_read_each_other = all_say(can_read_memory_of(processes.numbers, host), host);
  segments[static_cast<std::size_t>(host.rank())].stop_offering();
  std::unique_ptr<HostShmWire> wire;
  try {
    wire = std::make_unique<HostShmWire>(rank_, ranks_of_this_host(), std::move(segments), options,
                                         std::move(processes), beside);
  } catch (const std::exception& error) {  // no thread to watch processes, say
    base::log(base::LogLevel::kWarning, "rank ", rank_, ": no shared memory: ", error.what());
  }
  return all_say(wire != nullptr, world_) ? std::move(wire) : nullptr;
}

std::unique_ptr<HostShmWire> MpiSession::connect_host_shm() const {
  auto wire = share_rings({}, nullptr);
  if (!wire) return nullptr;
  // What shared memory does not carry, MPI will.
  const auto wrong = probe(*wire, kProbePatience);
  if (!wrong.empty()) {
    base::log(base::LogLevel::kWarning, "shared memory does not work here, MPI is used: ", wrong);
  }
  if (!all_say(wrong.empty(), world_)) return nullptr;
  return wire;
}

namespace {

/// Steps that every rank takes, each with the others: once one fails, on whatever rank, nobody
/// takes the next, and all know why.
class Together {
 public:
  /// @param problem  of the step that failed
  Together(const MpiSession& ranks, std::string& problem) : ranks_(ranks), problem_(problem) {}

  /// Whether `step` did not throw, here and elsewhere. All ranks call it.
  bool take(const std::function<void()>& step) {
    std::string own;
    try {
      step();
    } catch (const std::exception& error) {
      own = error.what();
    }
    const auto problems = ranks_.all_gather(own);
    const auto first = std::find_if(problems.begin(), problems.end(),
                                    [](const auto& problem) { return !problem.empty(); });
    if (first == problems.end()) return true;
    problem_ = base::concat("rank ", first - problems.begin(), ": ", *first);
    return false;
  }

 private:
  const MpiSession& ranks_;
  std::string& problem_;
};

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

}  // namespace

/// `own` of each of `members`, in their order. All ranks call it.
std::vector<std::string> MpiSession::gather_from(const Members& members,
                                                 const std::string& own) const {
  const auto all = all_gather(own);
  std::vector<std::string> texts;
  for (const GlobalRank member : members) texts.push_back(all[member.index()]);
  return texts;
}

/// @param problem  of some rank, if nothing is returned
std::unique_ptr<Wire> MpiSession::try_cuda_ipc(c10::Device device, const HostShmWire& beside,
                                               bool shared_events, std::string& problem) const {
  auto messages = share_rings({.blocks = 1}, &beside);
  if (!messages) {
    problem = "the machine refuses shared memory";
    return nullptr;
  }
  const Members members = messages->members();
  Together ranks(*this, problem);
  std::unique_ptr<CudaDriver> driver;
  std::string gpu;
  const auto find_gpu = [&] {
    driver = std::make_unique<CudaDriver>(device);
    gpu = driver->identity();
  };
  if (!ranks.take(find_gpu)) return nullptr;
  const auto gpus = gather_from(members, gpu);
  std::unique_ptr<CudaIpcWire> wire;
  std::string offer;
  const auto set_aside = [&] {
    wire = std::make_unique<CudaIpcWire>(std::move(messages), std::move(driver), gpus,
                                         CudaIpcOptions{.shared_events = shared_events});
    offer = wire->offer();
  };
  if (!ranks.take(set_aside)) return nullptr;
  const auto offers = gather_from(members, offer);
  if (!ranks.take([&] { wire->connect(offers); })) {
    wire->disconnect();
    barrier();  // nobody frees what another has open
    return nullptr;
  }
  // If not, it frees nothing: its copies may never be done.
  if (!ranks.take([&] { require_carried(*wire, device); })) return nullptr;
  return wire;
}

std::unique_ptr<Wire> MpiSession::connect_cuda_ipc(c10::Device device,
                                                   const HostShmWire& beside) const {
  std::string with_events, without;
  auto wire = try_cuda_ipc(device, beside, /*shared_events=*/true, with_events);
  if (!wire) wire = try_cuda_ipc(device, beside, /*shared_events=*/false, without);
  if (!with_events.empty() && rank_.value() == 0) {
    base::log(base::LogLevel::kWarning,
              wire ? "GPUs of a machine cannot wait for each other here, each piece of a tensor is "
                     "announced when it is there: "
                   : "GPUs of a machine cannot reach each other's memory here, tensors go through "
                     "host memory: ",
              with_events, without == with_events || without.empty() ? "" : "; " + without);
  }
  return wire;
}

Members MpiSession::ranks_of_this_host() const {
  std::vector<GlobalRank> members;
  const int machine = machine_of_rank_[rank_.index()];
  for (int rank = 0; rank < size(); ++rank) {
    if (machine_of_rank_[static_cast<std::size_t>(rank)] == machine) members.emplace_back(rank);
  }
  return Members(std::move(members));
}

std::unique_ptr<Loans> MpiSession::connect_loans() const {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world_.get());
  auto loans = Loans::make(HeapAllocator::install());
  const auto own = loans ? loans->offer() : Loans::Offer();
  std::vector<Loans::Offer> offers(static_cast<std::size_t>(host.size()));
  check_mpi(
      MPI_Allgather(&own, sizeof own, MPI_BYTE, offers.data(), sizeof own, MPI_BYTE, host.get()),
      "offering memory");
  const bool connected = loans && loans->connect(rank_, ranks_of_this_host(), offers);
  if (!all_say(connected, host)) return nullptr;
  loans->stop_offering();
  return loans;
}

/// A wire may hold back what it calls sent until it is polled again. All ranks call it.
/// @return what was wrong meanwhile
std::string MpiSession::poll_until_all_come(Wire& wire, base::Nanoseconds patience) const try {
  const base::SteadyClock clock;
  const base::Nanoseconds end = clock.now() + patience;
  MpiMeeting meeting(world_);
  for (int idle = 0; !meeting.complete() && clock.now() < end; ++idle) {
    if (wire.poll()) idle = 0;
    wait_politely(idle);
  }
  return {};
} catch (const PeerLostError& error) {
  return error.what();
}

/// `action` gives what is wrong, or nothing; what is on one rank, or is thrown there, all ranks
/// hear of, so that nobody waits for that rank. All ranks call it.
/// @throws  this rank's own exception; or PeerLostError, with that of another
template <class Action>
void MpiSession::together(const std::string& what, const std::string& remedy,
                          Action&& action) const {
  std::exception_ptr own;
  std::string problem;
  try {
    problem = action();
  } catch (const PeerLostError& error) {
    problem = error.what();
  } catch (const std::exception& error) {
    problem = error.what();
    own = std::current_exception();
  }
  const auto problems = all_gather(problem);
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    SMP_REQUIRE_AS(PeerLostError, problems[rank].empty(), "rank ", rank, ": ", what, problems[rank],
                   remedy);
  }
}

/// Every rank makes an endpoint, tells all its address, and tries the wire.
/// @param variables  of the environment, by which a user may help
template <class Endpoint, class NetworkWire>
std::unique_ptr<Wire> MpiSession::connect_network(const char* name, const char* variables) const {
  std::unique_ptr<Endpoint> endpoint;
  together("", "", [&] {
    endpoint = std::make_unique<Endpoint>();
    return std::string();
  });
  const auto addresses = all_gather(endpoint->address());
  const auto what = base::concat("trying ", name, ": ");
  const auto remedy = base::concat("; look at ", variables, ", or use transport = auto");
  std::unique_ptr<NetworkWire> wire;
  together(what, remedy, [&] {
    wire =
        std::make_unique<NetworkWire>(rank_, Members::all(size()), std::move(endpoint), addresses);
    return std::string();
  });
  together(what, remedy, [&] {
    const auto wrong = probe(*wire, kProbePatience);
    const auto later = poll_until_all_come(*wire, 2 * kProbePatience);
    return wrong.empty() ? later : wrong;
  });
  return wire;
}

std::unique_ptr<Wire> MpiSession::connect_ucx() const {
  return connect_network<UcxWorker, UcxWire>("UCX", "UCX_TLS and UCX_NET_DEVICES");
}

std::unique_ptr<Wire> MpiSession::connect_ofi() const {
  return connect_network<OfiEndpoint, OfiWire>("libfabric", "FI_PROVIDER and FI_TCP_IFACE");
}

Routes MpiSession::fastest_routes(const RouteOptions& options) const {
  std::vector<WireUse> uses;
  std::unique_ptr<Loans> loans;
  if (auto shared = size() > 1 && options.shared_memory ? connect_host_shm() : nullptr) {
    const HostShmWire& rings = *shared;
    uses.push_back({std::move(shared)});
    if (options.lend) loans = connect_loans();
    if (options.device.is_cuda()) {
      auto gpus = connect_cuda_ipc(options.device, rings);
      if (gpus) uses.push_back({std::move(gpus), /*control=*/false});
    }
  }
  if (size() > 1 && options.network == Network::kUcx) uses.push_back({connect_ucx()});
  if (size() > 1 && options.network == Network::kOfi) uses.push_back({connect_ofi()});
  uses.push_back({connect_all()});
  return Routes(std::move(uses), std::move(loans));
}

std::vector<std::string> MpiSession::all_gather(const std::string& text) const {
  const int own = static_cast<int>(text.size());
  std::vector<int> lengths(machine_of_rank_.size());
  check_mpi(MPI_Allgather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, world_.get()),
            "gathering texts");
  std::vector<int> starts(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
  std::string all(static_cast<std::size_t>(starts.back() + lengths.back()), ' ');
  check_mpi(MPI_Allgatherv(text.data(), own, MPI_CHAR, all.data(), lengths.data(), starts.data(),
                           MPI_CHAR, world_.get()),
            "gathering texts");
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

std::optional<base::SharedMemory> MpiSession::share_memory(std::size_t bytes) const {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world_.get());
  std::optional<base::SharedMemory> memory;
  base::SharedMemory::Address address;
  if (host.rank() == 0 && (memory = base::SharedMemory::make(bytes))) address = memory->address();
  check_mpi(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, host.get()), "sharing memory");
  if (!memory) memory = base::SharedMemory::open(address, bytes);
  check_mpi(MPI_Barrier(host.get()), "sharing memory");
  if (memory) memory->stop_offering();
  return memory;
}

void MpiSession::barrier() const { check_mpi(MPI_Barrier(world_.get()), "waiting for all ranks"); }

void MpiSession::abort(int exit_code) const noexcept {
  std::fflush(stdout);
  std::fflush(stderr);
  abort_mpi(world_.get(), exit_code);
}

void MpiSession::abort_job(int exit_code) noexcept {
  int running = 0;
  int over = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&over);
  if (running && !over) abort_mpi(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace smp::d2d
