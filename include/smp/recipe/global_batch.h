// smp/recipe/global_batch.h: rows x accumulation x replicas.
#pragma once

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// Rows `first` to `first + count - 1` of a global batch.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// How the rows of one optimizer step are dealt out. Which row is where changes neither losses nor
/// gradients, but for the order in which they are added: with the loss "mean" every row counts
/// 1 / total().
struct GlobalBatch {
  std::int64_t rows = 1;          ///< of one microbatch
  std::int64_t accumulation = 1;  ///< microbatches of one replica, whose gradients are added
  std::int64_t replicas = 1;      ///< batches that are read: smp::data_shard().count
  friend bool operator==(const GlobalBatch&, const GlobalBatch&) = default;

  /// Returns the rows that one replica reads for a step.
  std::int64_t rows_of_replica() const { return rows * accumulation; }
  /// Returns the rows of a step, all replicas together.
  std::int64_t total() const { return rows_of_replica() * replicas; }
  /// Returns the rows of the global batch that replica `replica` reads.
  RowRange of_replica(std::int64_t replica) const {
    return {replica * rows_of_replica(), rows_of_replica()};
  }
  /// Returns those of them that are its microbatch `microbatch`.
  RowRange of_microbatch(std::int64_t replica, std::int64_t microbatch) const {
    return {replica * rows_of_replica() + microbatch * rows, rows};
  }
};

/// Returns the batch of `total` rows in which each of `replicas` adds up microbatches of `rows`
/// rows. Any thread.
/// @throws UsageError  a number is not positive, or `total` is no multiple of rows x replicas:
///                     with the nearest totals that are.
SMP_API GlobalBatch divide_global_batch(std::int64_t total, std::int64_t rows,
                                        std::int64_t replicas);

}  // namespace smp
