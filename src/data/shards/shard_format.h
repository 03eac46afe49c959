// data/shards/shard_format.h: how a token shard lies in its file (docs/data.md): a header; the
// body, which is all tokens and then where documents begin; a checksum for each block of the body.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "smp/data/token_shard.h"

namespace smp::data {

/// Of the header; the body begins there.
inline constexpr std::uint64_t kHeaderBytes = 128;
/// What one checksum covers: little enough that reading a document reads few others, and a multiple
/// of every token's width.
inline constexpr std::uint64_t kBlockBytes = 65536;

/// Places in a shard's file, in bytes.
struct ShardLayout {
  std::uint64_t tokens;     ///< where the first token lies
  std::uint64_t begins;     ///< where the table of documents lies: documents + 1 numbers
  std::uint64_t checksums;  ///< one for each block from `tokens` to here
  std::uint64_t end;        ///< of the file

  std::uint64_t body_bytes() const { return checksums - tokens; }
  std::uint64_t blocks() const { return (body_bytes() + kBlockBytes - 1) / kBlockBytes; }
  /// Begin and end of block `block` in the file.
  std::uint64_t block_begin(std::uint64_t block) const { return tokens + block * kBlockBytes; }
  std::uint64_t block_end(std::uint64_t block) const {
    return std::min(block_begin(block + 1), checksums);
  }
};

/// The numbers of `info` must be those of a header that decode_header() takes.
ShardLayout shard_layout(const TokenShardInfo& info);

/// Returns the 128 bytes of the header.
std::string encode_header(const TokenShardInfo& info);
/// Reads the header at the front of `file`, all of a shard, and compares the file's size.
/// @throws UsageError  it is no such header, or the file is longer or shorter than it says
TokenShardInfo decode_header(std::string_view file, const std::string& path);

/// Returns the bytes of a token of a vocabulary: 2 or 4.
inline int token_width(std::int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

/// The checksum of a block.
std::uint64_t block_checksum(std::string_view block);

}  // namespace smp::data
