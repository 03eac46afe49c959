// perf/d2d/neuron_cores.h: how fast tensors go between two Neuron cores of this machine, on each
// path that works.
#pragma once

#include <optional>

#include "d2d/job/mpi_session.h"
#include "harness.h"

namespace smp::perf::d2d_program {

/// Which cores the two ranks share; see NeuronMemory of smp/program/neuron.h.
struct CoresToMeasure {
  int cores = 0;
  int first_on_host = 0;
};

/// Adds rows `neuron_cores.WIRE.*`, and prints why a path has none. Both ranks call it.
/// @throws PeerLostError  there is no runtime of AWS Neuron, or others have the cores.
void report_neuron_cores(const d2d::MpiSession& job, const CoresToMeasure& which,
                         std::optional<Report>& report);

}  // namespace smp::perf::d2d_program
