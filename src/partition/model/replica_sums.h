// partition/model/replica_sums.h: how long replicas still sum up their gradients when a step of
// their pipeline has ended (paper §5.1). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/simulator.h"

namespace smp::partitioning {

/// Returns the seconds from the end of `step` until the replicas of every stage have summed their
/// gradients. A stage that ends early sums while others still compute. Buckets are sent while the
/// last microbatch's backward runs, so that only the last bucket is left after a long backward.
/// @param gradient_bytes  by stage, the bytes of one set of gradients
[[nodiscard]] double replica_sum_seconds(const simulate::SimulatedStep& step,
                                         const simulate::Machine::Replicas& replicas,
                                         const std::vector<std::int64_t>& gradient_bytes);

}  // namespace smp::partitioning
