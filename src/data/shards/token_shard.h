// data/shards/token_shard.h: a shard that is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "data/files/mapped_input.h"
#include "data/shards/shard_format.h"
#include "data/shards/token_source.h"
#include "smp/data/token_shard.h"

namespace smp::data {

/// Maps a shard and compares a block's checksum when it is first read. Threads: any.
class TokenShard final : public TokenSource {
 public:
  /// Constant time. @throws UsageError  as decode_header()
  explicit TokenShard(const std::string& path);

  const TokenShardInfo& info() const noexcept override { return info_; }
  const std::string& path() const noexcept override { return file_.path(); }

  /// @throws UsageError  the table of documents is damaged there
  Range document(std::int64_t number) const override;
  /// Returns tokens begin to end - 1, in the mapped file.
  /// @throws UsageError  a block is damaged, or holds tokens beyond the vocabulary
  TokenSpan tokens(std::int64_t begin, std::int64_t end) const override;
  /// Reads all of it. @throws UsageError  naming the first damaged bytes
  void check() const;

 private:
  void check_bytes(std::uint64_t begin, std::uint64_t end) const;
  void check_block(std::uint64_t block) const;
  void check_vocabulary(std::uint64_t begin, std::uint64_t end) const;
  std::uint64_t number_at(std::uint64_t offset) const;

  MappedInput file_;
  TokenShardInfo info_;
  ShardLayout layout_;
  // A bit for each block that was right. Two threads that check one block do it twice.
  std::unique_ptr<std::atomic<std::uint64_t>[]> right_;
};

}  // namespace smp::data
