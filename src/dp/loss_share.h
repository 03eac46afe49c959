// dp/loss_share.h: what a replica's loss counts in the loss of the whole job
// (docs/data_parallelism.md, What is added up).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace smp::dp {

/// Returns the factor by which the losses of replica `replica` are multiplied in backward, so that
/// the sum of all replicas' gradients is the gradient of one process on the global batch. Nothing
/// is scaled afterwards: what modules add to gradients by themselves counts as it is.
/// @param loss  "mean": over all rows of the job. "sum": over all rows of the job: 1. "weights":
///              each replica has its own, and the mean over replicas is what is wanted.
/// @param rows  of each replica's batch; -1: nothing of it is split, it counts as much as any other
double loss_share(std::string_view loss, const std::vector<std::int64_t>& rows,
                  std::size_t replica);

/// Returns a further factor for jobs where some replicas have no batch and give nothing
/// (smp::Join), and loss_share() was asked of the others alone.
/// @param active         replicas that have one, of `all`
/// @param divide_by_all  whether a mean is one over all replicas; else over the active ones
double active_share(std::string_view loss, int active, int all, bool divide_by_all);

}  // namespace smp::dp
