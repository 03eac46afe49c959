// partition/model/cut_bytes.h: what crosses the borders of stages.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Bytes of tensors that one stage receives and sends in the forward pass of one microbatch, on
/// average over those that were traced. The backward pass moves their gradients the other way.
struct CutBytes {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// Returns, by stage, the bytes that travel when a step runs (simulate/step_program.h): to the
/// module that is called and back, or on to the stage that gets the result, if the machine passes
/// results on.
/// @param stages  the stage of every module of the tree
std::vector<CutBytes> cut_bytes(const simulate::Trace& trace, const std::vector<int>& stages,
                                const simulate::Machine& machine);

}  // namespace smp::partitioning
