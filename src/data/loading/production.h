// data/loading/production.h: the batches of a loader as they are made, ahead or when asked for.
#pragma once

#include <cstdint>
#include <optional>

#include "base/forked_child.h"
#include "data/loading/ahead.h"
#include "data/loading/packer.h"
#include "data/loading/portion.h"

namespace smp::data {

/// Reads portions on some threads and packs them on one more; or does both when asked for a batch.
/// Threads: one asks.
class Production {
 public:
  struct Options {
    int threads;  ///< 0: none
    int batches_ahead;
    double deadline_seconds;
  };
  /// @param reader  must outlive this
  Production(const PortionReader& reader, const Packer::Options& packing, const LoaderPlace& start,
             const Options& options);
  ~Production();
  Production(const Production&) = delete;
  Production& operator=(const Production&) = delete;

  /// Returns the next batch; nothing after the last one.
  /// @throws UsageError     what the batch needs is damaged
  /// @throws ResourceError  it is late; may be asked for again
  std::optional<PackedBatch> next();
  /// False in a child that was forked since: it has none of the threads, and must neither use this
  /// nor end it.
  bool is_here() const noexcept { return here_.is_here(); }

 private:
  std::optional<Portion> next_portion();

  const PortionReader& reader_;
  Position start_;
  Options options_;
  std::int64_t read_ = 0;  // portions, without threads
  std::optional<Ahead<Portion>> portions_;
  Packer packer_;
  std::optional<Ahead<PackedBatch>> batches_;  // ends first: its thread uses all of the above
  base::MadeHere here_;
};

}  // namespace smp::data
