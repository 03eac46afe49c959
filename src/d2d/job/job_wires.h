// d2d/job/job_wires.h: the wires of a job and the routes over them. Threads: the one that made the
// MpiSession.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "d2d/channel/route.h"
#include "d2d/job/machine_wires.h"
#include "d2d/job/mpi_session.h"

namespace smp::d2d {

struct NeuronEnd;

enum class Network : std::uint8_t { kMpi, kUcx, kOfi };
struct RouteOptions {
  bool lend = true;                 ///< on a machine, tensors of the server: see connect_loans()
  bool shared_memory = true;        ///< on a machine
  Network network = Network::kMpi;  ///< where there is no shared memory
  c10::Device device{c10::DeviceType::CPU};  ///< this rank's
  const NeuronEnd* neuron = nullptr;         ///< on all ranks, or on none
  base::Nanoseconds keep_alive = 0;          ///< as the setting keep_alive_seconds; 0: none
  std::string keep_alive_interface{};        ///< empty: any
  WarnOfRoutes warn{};
};
/// Returns the options for settings.
/// @param transport, lend_tensors  the settings of these names; "local" is taken for "auto"
RouteOptions route_options(const std::string& transport, bool lend_tensors);
/// Connects all ranks of the job: shared memory on a machine, a network between machines, and
/// connections by which ranks of different machines watch each other. All ranks of the job call it.
Routes fastest_routes(const MpiSession& job, const RouteOptions& options = {});

}  // namespace smp::d2d
