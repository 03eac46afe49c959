// tp/experts/expert_exchange.h: rows that travel to the ranks of the experts that they chose, and
// back.
//
// T tensor-parallel ranks, c experts of each, R rows of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace smp::tp {

/// The ways of one call's rows. Ranks send blocks of one length, that of the longest.
class ExpertExchange {
 public:
  /// Tells the ranks how many rows go where. Suspends.
  /// @param counts  of this rank's rows for each of the T·c experts, in order
  /// @param own     c
  ExpertExchange(const std::vector<std::int64_t>& counts, std::int64_t own);

  /// Returns the rows of all ranks for this rank's experts, in order of experts, and of ranks for
  /// each. @param rows  [R, W], in order of the experts of all ranks. Suspends.
  at::Tensor to_experts(const at::Tensor& rows) const;
  /// Returns what the experts of all ranks made of this rank's rows: [R, W]. Suspends.
  /// @param results  of to_experts(), in its order
  at::Tensor back(const at::Tensor& results) const;

  /// The rows for each of this rank's experts.
  const std::vector<std::int64_t>& counts() const noexcept { return counts_; }
  /// The rows that each rank sends to each.
  std::int64_t block() const noexcept { return block_; }

 private:
  at::Tensor moved(const at::Tensor& rows, const std::vector<std::int64_t>& from,
                   const std::vector<std::int64_t>& to) const;

  std::int64_t block_ = 0;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> sent_;   // place of each own row among those that are sent
  std::vector<std::int64_t> taken_;  // place of each row for own experts among those that come
};

}  // namespace smp::tp
