// dp/gradient_reducer.h: the gradients of one stage's parameters, averaged over its replicas
// (paper §3.2.2: data parallelism around the pipeline; architecture as Li et al., VLDB 2020).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "d2d/communicator.h"

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
  GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                  std::int64_t bucket_bytes, int divisor = 0);

  /// Of this rank, now.
  Forms forms() const;

  /// Makes `.grad` of every parameter the sum over all replicas, divided; one that is missing in
  /// some of them counts as zero, one that is missing in all stays missing. Suspends the calling
  /// fiber.
  /// @param forms  of all replicas, in their order
  /// @throws as d2d::Communicator, with a replica that left.
  void reduce(const std::vector<Forms>& forms);

 private:
  enum class Form : char { kNone = '-', kDense = 'd', kSparse = 's' };
  Form common_form(const std::vector<Forms>& forms, std::size_t parameter) const;
  void reduce_dense(const std::vector<std::size_t>& bucket);
  void reduce_sparse(std::size_t parameter);

  const d2d::Communicator replicas_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<std::vector<std::size_t>> buckets_;
  const int divisor_;
};

}  // namespace smp::dp
