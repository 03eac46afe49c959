// dp/shard_plan.h: which replica keeps the optimizer's state of which parameter, and which
// parameters travel together between replicas that keep them (paper App. H.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dp/bucket_plan.h"

namespace smp::dp {

/// Returns the replica that keeps each of the tensors with these `bytes`: the largest first, each
/// to the replica that has least so far, so that none has more than the mean and one tensor
/// (Graham, SIAM J. Appl. Math. 1969). A pure function: all ranks get the same.
/// @param loads  bytes that each replica has already; updated
std::vector<int> plan_shards(const std::vector<std::int64_t>& bytes,
                             std::vector<std::int64_t>& loads);

/// Returns the owners of `parameters`, given by index; empty if they have none. All have one, or
/// none has.
/// @param owners  of all parameters, -1: nobody; empty: all have none
std::vector<int> owners_among(const std::vector<int>& owners,
                              const std::vector<std::size_t>& parameters);

/// The tensors that travel in one collective of all replicas.
struct ShardRound {
  c10::ScalarType dtype;                           ///< of all its tensors
  std::vector<std::vector<std::size_t>> of_owner;  ///< indices of tensors, by who keeps them
};

/// Returns the tensors in rounds of about `cap_bytes`, to which every replica adds about as much;
/// the last tensors first, as in plan_buckets(). Each tensor with an owner is in one round, the
/// others are in none.
/// @param owners  one for each tensor; -1: nobody keeps it alone
std::vector<ShardRound> plan_rounds(const std::vector<TensorSize>& tensors,
                                    const std::vector<int>& owners, int replicas,
                                    std::int64_t cap_bytes);

}  // namespace smp::dp
