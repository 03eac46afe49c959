// smp/data/token_loader.h: batches of packed tokens for a language model (docs/data.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "smp/data/documents.h"
#include "smp/data/tokenizer.h"
#include "smp/detail/export.h"

namespace smp::data {

/// The target that no loss counts: `ignore_index` of torch's cross_entropy.
inline constexpr std::int64_t kIgnoredTarget = -100;

/// What one replica reads at one step. Tensors are on the CPU, contiguous, and nobody else's.
struct Batch {
  at::Tensor tokens;   ///< int64 [rows, context]: what the model reads
  at::Tensor targets;  ///< int64 [rows, context]: the token after each, or kIgnoredTarget
  /// int64 [rows, context]: the place of each token in its document, or in its row if the document
  /// began in an earlier one. Undefined unless reset_at_documents.
  at::Tensor positions;
  /// int64 [rows, context]: which document of its row a token belongs to: 0, 1, ... (see
  /// document_mask()). Undefined unless reset_at_documents.
  at::Tensor documents;
  /// Number of targets that are not kIgnoredTarget; 0 is possible in the very last batch.
  std::int64_t counted = 0;
};

/// Returns which tokens each token may attend to: those of its document that are not behind it.
/// @param documents  Batch::documents, int64 [rows, context]
/// @return           bool [rows, 1, context, context], true where attention is allowed: an
///                   `attn_mask` of scaled_dot_product_attention
SMP_API at::Tensor document_mask(const at::Tensor& documents);

/// How a TokenLoader makes batches; but replica and threads, the same on all ranks.
struct TokenLoaderOptions {
  /// Turns text into tokens. May be null if all documents are tokens.
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  /// Tokens of a row.
  std::int64_t context = 1024;
  /// Rows of a batch of one replica.
  std::int64_t rows = 1;
  /// If true, every epoch has another random order of documents; otherwise it is that of the files.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// How often every document is read; 0: without an end. An epoch's last row goes on with the next
  /// epoch's first document.
  std::int64_t epochs = 1;
  /// What happens to the tokens at the very end that do not fill a batch of every replica: true
  /// leaves them out; false fills it up with ends of documents, whose targets are kIgnoredTarget.
  bool drop_last = false;
  /// Number of this replica, and of replicas: index and count of smp::data_shard(). Ranks of one
  /// replica (stages, and with `prescaled_batch` those of a TP_GROUP) read the same.
  int replica = 0;
  int replicas = 1;
  /// A token that goes before every document, such as Llama's `<s>`.
  std::optional<std::int32_t> begin_of_document = std::nullopt;
  /// If true, batches have `positions` and `documents`.
  bool reset_at_documents = false;
  /// If true, the target of an end of document is kIgnoredTarget: nothing predicts how the next
  /// document begins.
  bool ignore_across_documents = false;
  /// If true, documents that cannot be read (no JSON, no UTF-8, wrong checksum) are left out and
  /// counted; every replica then reads all bytes of shards, as all must leave out the same.
  /// Otherwise the step that needs one throws.
  bool skip_damaged = false;
  /// Threads that tokenise and pack while steps run; 0: next() does it all itself. The batches do
  /// not depend on it.
  int threads = 1;
  /// Batches that are made ahead, at most.
  int batches_ahead = 4;
  /// How long next() waits for the threads before it throws.
  double deadline_seconds = 600;
};

/// What a TokenLoader has handed out since it was made, to all replicas together; a restored one
/// goes on counting.
struct TokenLoaderCounters {
  std::int64_t steps = 0;      ///< batches of each replica
  std::int64_t tokens = 0;     ///< tokens in them; those that fill up the last one are not counted
  std::int64_t documents = 0;  ///< documents that began in them; an epoch later they count again
  std::int64_t skipped = 0;    ///< damaged ones that were left out on the way
  std::int64_t epoch = 0;      ///< from 0 on: the one that the next token belongs to
};

/// Reads documents in their order or at random, puts an end of document behind each, and cuts the
/// one long line of tokens that this gives into rows: every token of an epoch is in one row once.
///
///     smp::data::TokenLoaderOptions options;
///     options.tokenizer = smp::data::bytes_tokenizer();
///     options.replica = smp::data_shard().index;
///     options.replicas = smp::data_shard().count;
///     smp::data::TokenLoader loader(smp::data::open_documents({"corpus.jsonl"}), options);
///     while (auto batch = loader.next()) loss = train(batch->tokens, batch->targets);
///
/// Step s gives tokens [s*G, (s+1)*G) of that line to the replicas, in their order, where G =
/// replicas * rows * context. So all replicas together read what one would read with R times the
/// rows, and a state that any of them saved is the state of all. Which replica reads what depends
/// on files, seed and these numbers only, not on threads or time.
///
/// Text is tokenised by every replica, as nothing else says where a row begins; with many replicas
/// pack it once (pack_tokens()): of shards each reads its own tokens only.
///
/// Threads: one at a time. After a fork, the child must not use it (it may end it).
class SMP_API TokenLoader {
 public:
  /// Starts no thread before the first next().
  /// @throws UsageError  an option makes no sense, or shards have another vocabulary or another end
  ///                     of documents than the tokenizer or than each other
  TokenLoader(Documents documents, TokenLoaderOptions options);
  ~TokenLoader();
  TokenLoader(TokenLoader&&) noexcept;
  TokenLoader& operator=(TokenLoader&&) noexcept;

  /// Returns this replica's batch of the next step; nothing after the last one. All replicas have
  /// the same number of batches.
  /// @throws UsageError     a document is damaged: names file and line or offset. Every next()
  ///                        throws it again.
  /// @throws ResourceError  the threads had no batch within deadline_seconds
  std::optional<Batch> next();

  /// Returns where the next batch begins, as one short line of JSON: the same on all replicas.
  std::string state() const;
  /// Goes on where the loader stood that gave `state`: the tokens that are left are the same, also
  /// with other replicas, rows, context or threads. `documents`, seed and shuffle must be the same;
  /// files may have moved.
  /// @throws UsageError  it is no such state, or one of other documents, seed or order: the loader
  ///                     stays where it is
  void load_state(std::string_view state);

  TokenLoaderCounters counters() const;
  const TokenLoaderOptions& options() const;
  /// Tokens of the vocabulary: the tokenizer's, or the shards'.
  std::int64_t vocab_size() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smp::data
