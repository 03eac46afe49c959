// data/loading/packer.h: from documents in their order to a replica's batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "data/loading/batch_builder.h"
#include "data/loading/loader_place.h"
#include "data/loading/portion.h"

namespace smp::data {

/// A batch, and where the loader stands when it has been handed out.
struct PackedBatch {
  Batch batch;
  LoaderPlace after;
};

/// Cuts the line of all documents' tokens into steps, and copies what belongs to one replica. A
/// step is done when the token behind it is known, its last target, so all replicas fail at the
/// same step if that token's document is damaged.
class Packer {
 public:
  struct Options {
    StepShape shape;
    std::optional<std::int32_t> begin_token;
    std::int32_t end_token;
    bool ignore_across_documents;
    bool drop_last;
    std::int64_t documents;  ///< of an epoch
    std::int64_t epochs;     ///< 0: without an end
  };
  /// @param start  where the first portion begins; its offset may be within a document
  /// @param more   returns the next portion; nothing: there is none
  Packer(const Options& options, const LoaderPlace& start,
         std::function<std::optional<Portion>()> more);

  /// Returns the next batch; nothing: there are no more.
  /// @throws UsageError  a document is damaged; whatever `more` throws
  std::optional<PackedBatch> next();

 private:
  /// Some tokens of a document in a row: its begin, its own tokens or its end.
  struct Run {
    std::int64_t size;
    const std::int32_t* special;  ///< the begin or end; nullptr: tokens from `first` on
    std::int64_t first;
  };

  bool find_document();
  void skip();
  std::int64_t length() const;
  Run run() const;
  TokenSpan tokens(const Run& run, std::int64_t from, std::int64_t to) const;
  void put(const Run& run);
  void put_own(const Run& run);
  void complete_pending(const Run& run);
  void end_step(const Position& position, std::int64_t tokens);
  Position position_behind() const;
  void end_of_all();

  Options options_;
  std::function<std::optional<Portion>()> more_;
  std::optional<Portion> portion_;
  std::size_t document_ = 0;  // of the portion
  std::int64_t offset_;       // in that document
  std::int64_t skipped_in_a_row_ = 0;
  LoaderPlace place_;  // its counters go on with the tokens, its position with the steps
  std::optional<BatchBuilder> open_;
  std::int64_t filled_ = 0;             // tokens of the open step
  std::optional<PackedBatch> pending_;  // lacks what follows its last token
  std::optional<PackedBatch> complete_;
  bool over_ = false;
};

}  // namespace smp::data
