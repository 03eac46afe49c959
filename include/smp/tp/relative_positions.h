// smp/tp/relative_positions.h: positions as numbers that are learned of distances.
#pragma once

#include <cstdint>

namespace smp {

/// The table of T5 (Raffel et al. 2020, arXiv 1910.10683, section 2.1): a number for each head and
/// bucket of distances. Half of the buckets hold one distance each, the others ever more of them up
/// to `max_distance`. Attention that sees both directions gives half of the buckets to each.
struct RelativePositionOptions {
  std::int64_t num_buckets = 32;    ///< at least 4
  std::int64_t max_distance = 128;  ///< more than half of the buckets of a direction
};

}  // namespace smp
