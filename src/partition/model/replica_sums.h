// partition/model/replica_sums.h: how long replicas still sum up their gradients when a step of
// their pipeline has ended (paper §5.1). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/simulator.h"

namespace smp::partitioning {

/// Seconds from the end of `step` until every stage has its sums. A stage that ends early sums
/// while others still compute. Buckets go while the last microbatch's backward runs, so that of a
/// long one only the last bucket is left.
/// @param gradient_bytes  by stage, of one set of gradients
[[nodiscard]] double replica_sum_seconds(const simulate::SimulatedStep& step,
                                         const simulate::Machine::Replicas& replicas,
                                         const std::vector<std::int64_t>& gradient_bytes);

}  // namespace smp::partitioning
