// d2d/job/gpu_wires.h: the wire between GPUs of a machine, tried with real bytes. Threads: the one
// that made the MpiSession.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "d2d/job/mpi_session.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/shm/host_shm_wire.h"

namespace smp::d2d {

/// Returns a wire between the GPUs of this machine's ranks; nullptr, with a warning, if some
/// machine of the job does not let processes open each other's GPU memory. All ranks of the job
/// call it.
/// @param device  this rank's, of CUDA
/// @param beside  outlives the wire
std::unique_ptr<Wire> connect_cuda_ipc(const MpiSession& job, c10::Device device,
                                       const HostShmWire& beside);

}  // namespace smp::d2d
