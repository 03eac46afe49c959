// d2d/job_wires.h: the wires of a job: which there are, tried with real bytes, and the routes over
// them. Threads: the one that made the MpiSession. All ranks of the job call each of these.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "d2d/loans.h"
#include "d2d/mpi_session.h"
#include "d2d/route.h"
#include "d2d/wire.h"
#include "d2d/wires/host_shm_wire.h"

namespace smp::d2d {

/// Takes what this rank warns about, if it is the one that refuses something: a text that ranks
/// with the same trouble have alike. Without one it is logged at once.
using WarnOfRoutes = std::function<void(const std::string&)>;

/// A wire between the ranks of this machine (there may be no others) through memory that they
/// share; nothing, and a warning, if some machine of the job refuses it.
std::unique_ptr<HostShmWire> connect_host_shm(const MpiSession& job, const WarnOfRoutes& warn = {});
/// A wire between the GPUs of this machine's ranks; nothing, and a warning, if some machine of
/// the job does not let processes open each other's GPU memory.
/// @param device  this rank's, of CUDA
/// @param beside  outlives the wire
std::unique_ptr<Wire> connect_cuda_ipc(const MpiSession& job, c10::Device device,
                                       const HostShmWire& beside);
/// Memory of this machine's ranks that they lend each other; nothing, and a warning, if one of them
/// refuses. Called while nobody allocates tensors: from then on those of this process lie there
/// (d2d/heap_allocator.h).
std::unique_ptr<Loans> connect_loans(const MpiSession& job, const WarnOfRoutes& warn = {});
/// A wire over UCX between all ranks of the job.
/// @throws PeerLostError  UCX does not start on some rank, or carries the wrong bytes.
std::unique_ptr<Wire> connect_ucx(const MpiSession& job);
/// The same over libfabric.
std::unique_ptr<Wire> connect_ofi(const MpiSession& job);

enum class Network : std::uint8_t { kMpi, kUcx, kOfi };
struct RouteOptions {
  bool lend = true;                 ///< on a machine, tensors of the server: see connect_loans()
  bool shared_memory = true;        ///< on a machine
  Network network = Network::kMpi;  ///< where there is no shared memory
  c10::Device device{c10::DeviceType::CPU};  ///< this rank's
  base::Nanoseconds keep_alive = 0;          ///< as the setting keep_alive_seconds; 0: none
  std::string keep_alive_interface{};        ///< empty: any
  WarnOfRoutes warn{};
};
/// @param transport, lend_tensors  as the settings of these names; "local" is taken for "auto"
RouteOptions route_options(const std::string& transport, bool lend_tensors);
/// Between all ranks of the job: shared memory on a machine, a network between machines, and
/// connections by which ranks of different machines watch each other.
Routes fastest_routes(const MpiSession& job, const RouteOptions& options = {});

}  // namespace smp::d2d
