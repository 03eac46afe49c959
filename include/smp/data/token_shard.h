// smp/data/token_shard.h: files of documents that are tokens already. They are mapped into memory,
// and opened in constant time, however large. The format is described in docs/data.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "smp/data/documents.h"
#include "smp/data/tokenizer.h"
#include "smp/detail/export.h"

namespace smp::data {

/// What the header of a shard says.
struct TokenShardInfo {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  ///< of all documents; ends of documents are not among them
  std::int64_t vocab_size = 0;
  std::int32_t end_of_document = 0;  ///< the token that a TokenLoader puts behind every document
  int token_bytes = 0;               ///< 2, or 4 where vocab_size is above 65536
};

/// Writes a token shard, document after document. The file appears under its name when finish()
/// returns, whole; without finish() there is none. Threads: one at a time.
class SMP_API TokenShardWriter {
 public:
  /// @throws UsageError     vocab_size is below 1 or above 2^31 - 1, or end_of_document is not
  /// below
  ///                        it, or negative
  /// @throws ResourceError  a file cannot be made there
  TokenShardWriter(const std::string& path, std::int64_t vocab_size, std::int32_t end_of_document);
  ~TokenShardWriter();
  TokenShardWriter(const TokenShardWriter&) = delete;
  TokenShardWriter& operator=(const TokenShardWriter&) = delete;

  /// Appends a document, which may be empty; without an end of document.
  /// @throws UsageError     a token is not below vocab_size, or negative: nothing is appended
  /// @throws ResourceError  the disk is full
  void append(std::span<const std::int32_t> tokens);
  /// Puts the file in its place. @throws ResourceError  it cannot be written
  TokenShardInfo finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads the header of the shard `path`, in constant time.
/// @throws UsageError  it is no token shard, or is cut short or damaged there: says where
SMP_API TokenShardInfo token_shard_info(const std::string& path);

/// Reads all of the shard `path` and compares its checksums.
/// @throws UsageError  it is damaged: names the first damaged bytes
SMP_API void check_token_shard(const std::string& path);

/// How pack_tokens() writes a shard.
struct PackOptions {
  /// If true, damaged documents are left out and counted, not thrown.
  bool skip_damaged = false;
  /// Threads that tokenise.
  int threads = 1;
};

/// What pack_tokens() did.
struct PackResult {
  TokenShardInfo shard;
  std::int64_t skipped = 0;  ///< damaged documents
};

/// Tokenises `documents` once and writes them, in their order, to the token shard `path`.
/// `tokenizer` may be null if all documents are tokens: their shards become one.
/// @throws UsageError     a document is damaged, or they are tokens of another vocabulary
/// @throws ResourceError  the file cannot be written
SMP_API PackResult pack_tokens(const Documents& documents,
                               const std::shared_ptr<const Tokenizer>& tokenizer,
                               const std::string& path, const PackOptions& options = {});

}  // namespace smp::data
