// simulate/most_activations.h: what a stage may have to hold at most, whatever the timing.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/machine.h"
#include "simulate/simulator.h"
#include "simulate/trace.h"

namespace smp::simulate {

/// By stage: most bytes that the microbatches can take together which the schedule keeps there at
/// once, however long computations and messages take: every request of all of them at its own worst
/// moment, one of them computing, and what came for microbatches that may not enter yet. No step of
/// simulate() takes more. Neither does a real one, where requests of one microbatch that do not
/// need each other overlap (simulate() runs them one after the other), as far as the trace tells
/// what is live, and but for gradients of weights that wait for those of an earlier microbatch, and
/// of inputs of requests in a row, which are taken to need each other if they might.
/// @throws InternalError  as simulate()
[[nodiscard]] std::vector<std::int64_t> most_activations(const Trace& trace,
                                                         const std::vector<int>& stages,
                                                         const Machine& machine,
                                                         const SimulationOptions& options);

}  // namespace smp::simulate
