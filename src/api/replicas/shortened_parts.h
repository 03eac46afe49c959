// api/replicas/shortened_parts.h: parts of rows that a step has shortened, as they were before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace smp {

/// Of slices, of which each rank has a part of every row. Ranks that share a table come to the
/// look-ups of their microbatches in different orders, so the parts that one of them has shortened
/// already count in norms as they were before (tp/group/shorten_rows.h), each is scaled once, and a
/// step that fails takes all of it back, since other ranks may not have come to their parts.
/// Threads: the rank's.
class ShortenedParts {
 public:
  /// Returns parts of rows as they were before the step.
  /// @param rows  [n], int64, each once
  /// @return [n, D/T], a tensor of its own
  [[nodiscard]] at::Tensor before(const at::Tensor& slice, const at::Tensor& rows) const;
  /// Scales the parts that the step has not scaled yet. @param scales  [n]
  /// @return their rows, on the CPU
  at::Tensor scale(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales);

  /// The step has ended well.
  void keep() noexcept { tables_.clear(); }
  /// The step has failed.
  void take_back();

 private:
  struct Table {
    at::Tensor slice;
    std::unordered_map<std::int64_t, at::Tensor> parts;  ///< by row, each [D/T]
  };
  const Table* find(const at::Tensor& slice) const;
  Table& table_of(const at::Tensor& slice);

  std::vector<Table> tables_;
};

}  // namespace smp
