// dp/gradient_reducer.h: the gradients of one stage's parameters, averaged over its replicas
// (paper §3.2.2: data parallelism around the pipeline; architecture as Li et al., VLDB 2020), on
// all of them or on the one that steps the parameter (App. H.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "d2d/communicator.h"
#include "dp/shard_plan.h"

namespace smp::dp {

/// Sums are taken in order of replicas at one place for each element, whatever the buckets and the
/// timing, so all replicas get the same bits, every time. Threads: the rank's.
class GradientReducer {
 public:
  /// How a replica holds its gradients, one letter a parameter: '-' none, 'd' dense, 's' sparse.
  using Forms = std::string;

  /// @param parameters    of the stage, in the same order on all members of `replicas`
  /// @param bucket_bytes  of gradients that travel together
  /// @param divisor       of the sum over `replicas`; 0: their number
  /// @param owners        positions in `replicas`, one for each parameter, or none: the one that
  ///                      gets the sum; -1: all get it
  GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                  std::int64_t bucket_bytes, int divisor = 0, std::vector<int> owners = {});

  /// Of this rank, now.
  Forms forms() const;

  /// Makes `.grad` of every parameter the sum over all replicas, divided; one that is missing in
  /// some of them counts as zero, one that is missing in all stays missing. Of a parameter with an
  /// owner the others have none afterwards. Suspends the calling fiber.
  /// @param forms  of all replicas, in their order
  /// @throws as d2d::Communicator, with a replica that left.
  void reduce(const std::vector<Forms>& forms);

 private:
  enum class Form : char { kNone = '-', kDense = 'd', kSparse = 's' };
  Form common_form(const std::vector<Forms>& forms, std::size_t parameter) const;
  std::vector<std::size_t> dense_ones(const std::vector<std::size_t>& bucket,
                                      const std::vector<Forms>& forms) const;
  std::vector<at::Tensor> dense_gradients(const std::vector<std::size_t>& parameters) const;
  void reduce_everywhere(const std::vector<Forms>& forms);
  void reduce_to_owners(const ShardRound& round);
  void reduce_sparse(std::size_t parameter);
  void drop_what_others_own() const;

  const d2d::Communicator replicas_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<int> owners_;                        // empty: nobody
  const std::vector<std::vector<std::size_t>> buckets_;  // of parameters without an owner
  const std::vector<ShardRound> rounds_;                 // of those with one
  const int divisor_;
};

}  // namespace smp::dp
