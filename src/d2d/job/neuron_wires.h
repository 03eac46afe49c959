// d2d/job/neuron_wires.h: the wire between the Neuron cores of a job, tried with real bytes.
// Threads: the one that made the MpiSession. All ranks of the job call each of these.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "d2d/job/machine_wires.h"
#include "d2d/job/mpi_session.h"
#include "d2d/wire/wire.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// The paths between Neuron cores, the fastest first.
enum class NeuronPath : std::uint8_t { kCollectives, kSendReceive, kNetwork, kStaging };

/// A rank's core, and its memory.
struct NeuronEnd {
  NeuronRuntime& runtime;  ///< and `places` outlive the wire
  RelativeCore core;
  const NeuronPlaces& places;
  /// Makes memory that `places` knows, for a probe.
  std::function<std::unique_ptr<ProbeMemory>()> probe_memory;
};

/// Connects all ranks over one path, and tries it.
/// @param problem  set to that of some rank if nullptr is returned
std::unique_ptr<Wire> connect_neuron(const MpiSession& job, const NeuronEnd& end, NeuronPath path,
                                     std::string& problem);
/// Returns the first path that carried what it was given, with a warning that says what was wrong
/// with those before. Collectives are tried where some rank has the variable that they need
/// (NEURON_RT_ROOT_COMM_ID).
/// @throws PeerLostError  none did.
std::unique_ptr<Wire> connect_neuron(const MpiSession& job, const NeuronEnd& end,
                                     const WarnOfRoutes& warn = {});

}  // namespace smp::d2d
