// dp/loss_share.h: what a replica's loss counts in the loss of the whole job
// (docs/data_parallelism.md, What is averaged).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace smp::dp {

/// By what the losses of replica `replica` are multiplied in backward, so that the mean of all
/// replicas' gradients is the gradient of one process on the global batch.
/// @param loss  "mean": over all rows of the job; 1 if the replicas have the same number of rows.
///              "sum": over all rows of the job. "weights": each replica has its own, and the mean
///              over replicas is what is wanted: 1.
/// @param rows  of each replica's batch; -1: nothing of it is split, it counts as much as any other
double loss_share(std::string_view loss, const std::vector<std::int64_t>& rows,
                  std::size_t replica);

}  // namespace smp::dp
