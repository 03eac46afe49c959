// d2d/mpi_session.h: starts and ends MPI for this process, or joins an MPI the user started.
// Threads: the thread that constructs it makes all MPI calls of this library.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "d2d/members.h"
#include "d2d/route.h"
#include "d2d/wire.h"
#include "d2d/wires/mpi_communicator.h"
#include "d2d/wires/mpi_segments.h"
#include "d2d/wires/mpi_wire.h"
#include "smp/rank.h"

namespace smp::d2d {

class HostShmWire;
struct HostShmOptions;

/// One per process, outliving its wires. All ranks of the job construct it.
class MpiSession {
 public:
  /// Starts MPI unless it runs already; an MPI that the user started is not ended by us.
  /// @throws UsageError  MPI was ended before: a process can start it only once.
  MpiSession();
  /// Ends MPI if this session started it. If other ranks do not end theirs as well: after 5 s
  /// while an exception unwinds (when this process exits, so that the exception can be reported),
  /// else after half an hour, the whole job is ended.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  GlobalRank rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(machine_of_rank_.size()); }
  /// Of each rank: the first rank that shares memory with it, which stands for their machine.
  const std::vector<int>& machine_of_rank() const noexcept { return machine_of_rank_; }
  /// Ranks on this machine, and how many of them come before this one.
  int local_size() const noexcept;
  int local_rank() const noexcept;
  bool started_mpi() const noexcept { return started_mpi_; }

  /// A wire between `members` of the job, with a message space of its own. Exactly these ranks call
  /// it, with the same members in the same order. A channel over it:
  /// `Channel channel(session.connect(members));`
  /// @throws UsageError  a rank does not exist, or this rank is not among them.
  std::unique_ptr<Wire> connect(const Members& members, MpiWireOptions options = {}) const;
  /// A wire between all ranks of the job, which all call it.
  std::unique_ptr<Wire> connect_all(MpiWireOptions options = {}) const;

  /// A wire between the ranks of this machine (there may be no others) through memory that they
  /// share; nothing if some machine of the job refuses it. All ranks of the job call it.
  std::unique_ptr<HostShmWire> connect_host_shm() const;
  /// A wire between the GPUs of this machine's ranks; nothing, and a warning, if some machine of
  /// the job does not let processes open each other's GPU memory. All ranks of the job call it.
  /// @param device  this rank's, of CUDA
  /// @param beside  outlives the wire
  std::unique_ptr<Wire> connect_cuda_ipc(c10::Device device, const HostShmWire& beside) const;
  /// Memory of this machine's ranks that they lend each other; nothing if one of them refuses. All
  /// ranks of the job call it, while nobody allocates tensors: from then on those of this process
  /// lie there (d2d/heap_allocator.h).
  std::unique_ptr<Loans> connect_loans() const;
  /// A wire over UCX between all ranks of the job, which all call it.
  /// @throws PeerLostError  UCX does not start on some rank, or carries the wrong bytes.
  std::unique_ptr<Wire> connect_ucx() const;
  /// The same over libfabric.
  std::unique_ptr<Wire> connect_ofi() const;
  enum class Network : std::uint8_t { kMpi, kUcx, kOfi };
  struct RouteOptions {
    bool lend = true;                 ///< on a machine, tensors of the server: see connect_loans()
    bool shared_memory = true;        ///< on a machine
    Network network = Network::kMpi;  ///< where there is no shared memory
    c10::Device device{c10::DeviceType::CPU};  ///< this rank's
  };
  /// Between all ranks of the job, which all call it: shared memory on a machine, a network between
  /// machines.
  Routes fastest_routes(const RouteOptions& options) const;
  Routes fastest_routes() const { return fastest_routes({}); }

  /// `text` of every rank, on every rank; all call it. Blocks.
  std::vector<std::string> all_gather(const std::string& text) const;

  /// Memory of zeros that the ranks of this machine share, and that is gone with the last of them;
  /// nothing where the machine refuses. All ranks call it. Blocks.
  std::optional<base::SharedMemory> share_memory(std::size_t bytes) const;

  /// Waits until every rank of the job has called it. Blocks.
  void barrier() const;

  /// Ends every process of the job with `exit_code`.
  [[noreturn]] void abort(int exit_code) const noexcept;
  /// The same, on any thread, whether a session lives or not.
  [[noreturn]] static void abort_job(int exit_code) noexcept;

 private:
  bool meet_to_finalize(base::Nanoseconds deadline) const;
  Members ranks_of_this_host() const;
  std::string poll_until_all_come(Wire& wire, base::Nanoseconds patience) const;
  std::unique_ptr<HostShmWire> share_rings(const HostShmOptions& options,
                                           const HostShmWire* beside) const;
  std::unique_ptr<Wire> try_cuda_ipc(c10::Device device, const HostShmWire& beside,
                                     bool shared_events, std::string& problem) const;
  std::vector<std::string> gather_from(const Members& members, const std::string& own) const;
  template <class Action>
  void together(const std::string& what, const std::string& remedy, Action&& action) const;
  template <class Endpoint, class NetworkWire>
  std::unique_ptr<Wire> connect_network(const char* name, const char* variables) const;

  bool started_mpi_;
  int exceptions_at_start_;
  MpiCommunicator world_;
  GlobalRank rank_;
  std::vector<int> machine_of_rank_;
  MpiSegments segments_;
};

}  // namespace smp::d2d
