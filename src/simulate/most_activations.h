// simulate/most_activations.h: what a stage may have to hold at most, whatever the timing.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/machine.h"
#include "simulate/simulator.h"
#include "simulate/trace.h"

namespace smp::simulate {

/// Returns for each stage the most bytes of the microbatches that the schedule keeps there at once,
/// however long computations and messages take: every request of all of them at its own worst
/// moment, one of them computing, and the messages of microbatches that may not enter yet. No step
/// of simulate() takes more. Nor does a real one, even though requests of one microbatch that do
/// not need each other overlap there (simulate() runs them one after the other), as far as the
/// trace tells what is live. Not counted are gradients of weights that wait for those of an earlier
/// microbatch, and gradients of inputs of requests in a row, which are taken to need each other if
/// they might.
/// @throws InternalError  as simulate()
[[nodiscard]] std::vector<std::int64_t> most_activations(const Trace& trace,
                                                         const std::vector<int>& stages,
                                                         const Machine& machine,
                                                         const SimulationOptions& options);

}  // namespace smp::simulate
