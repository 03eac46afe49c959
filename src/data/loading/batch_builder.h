// data/loading/batch_builder.h: the tensors of a batch while tokens enter them.
#pragma once

#include <cstdint>
#include <utility>

#include "data/shards/token_span.h"
#include "smp/data/token_loader.h"

namespace smp::data {

/// What a step looks like to one replica: of its tokens, which are numbered from 0 on, those from
/// begin() to end() - 1 are its own, in rows.
struct StepShape {
  std::int64_t context;
  std::int64_t rows;
  std::int64_t replica;
  std::int64_t replicas;
  bool reset_at_documents;

  std::int64_t own() const { return rows * context; }
  std::int64_t begin() const { return replica * own(); }
  std::int64_t end() const { return begin() + own(); }
  std::int64_t all() const { return replicas * own(); }
};

/// A replica's batch of one step. Tokens are put in order, all of them once, as far as they are
/// wanted.
class BatchBuilder {
 public:
  explicit BatchBuilder(const StepShape& shape);

  /// Puts own tokens, the first of which is number `at` of the step.
  /// @param begins  the first of them begins a document
  void put_tokens(std::int64_t at, const TokenSpan& tokens, bool begins);
  /// Puts what follows own tokens, beginning with what follows token `at` of the step.
  void put_targets(std::int64_t at, const TokenSpan& targets);
  /// Says that nothing follows the own token `at`, or nothing that counts.
  void ignore_target(std::int64_t at);
  /// Fills the own tokens from number `at` of the step on with `token`. Their targets, and that of
  /// the token before them, are ignored.
  void fill_up(std::int64_t at, std::int32_t token);

  Batch take() { return std::move(batch_); }

 private:
  void annotate(std::int64_t at, std::int64_t count, bool begins);

  StepShape shape_;
  Batch batch_;
  std::int64_t* tokens_;
  std::int64_t* targets_;
  std::int64_t* positions_ = nullptr;
  std::int64_t* documents_ = nullptr;
  std::int64_t document_ = 0;  // of the row that is being filled
  std::int64_t begin_ = 0;     // its first column
};

}  // namespace smp::data
