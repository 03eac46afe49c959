// partition/cut_bytes.h: what crosses the borders of stages.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/trace.h"

namespace smp::partitioning {

/// Bytes of tensors that one stage receives and sends in the forward pass of one microbatch, on
/// average over those that were traced. The backward pass moves their gradients the other way.
struct CutBytes {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// By stage. Values travel from the caller to the module and back, also those that the next module
/// needs; neighbours of a Sequential on one stage hand them on among themselves.
/// @param stages  of every module of the tree
std::vector<CutBytes> cut_bytes(const simulate::Trace& trace, const std::vector<int>& stages,
                                int pp_size);

}  // namespace smp::partitioning
