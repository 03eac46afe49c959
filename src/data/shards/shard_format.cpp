// data/shards/shard_format.cpp: numbers are little-endian, as on every machine that LibTorch runs
// on.
#include "data/shards/shard_format.h"

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace smp::data {
namespace {

static_assert(std::endian::native == std::endian::little);

// The line end shows a file that was sent as text; at 0x1a a terminal stops printing it.
constexpr std::string_view kMagic("SMPTOK\x1a\n", 8);
constexpr std::uint64_t kVersion = 1;
// Far above what disks hold, and low enough that no place in the file overflows.
constexpr std::uint64_t kMostCount = std::uint64_t{1} << 48;

struct Header {
  char magic[8];
  std::uint64_t version;
  std::uint64_t token_bytes;
  std::uint64_t vocab_size;
  std::uint64_t end_of_document;
  std::uint64_t documents;
  std::uint64_t tokens;
  std::uint64_t block_bytes;
  std::uint64_t unused[7];
  std::uint64_t checksum;  // of all before it
};
static_assert(sizeof(Header) == kHeaderBytes);

std::uint64_t header_checksum(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, checksum));
}

bool makes_sense(const Header& header) {
  return header.block_bytes == kBlockBytes && header.documents <= kMostCount &&
         header.tokens <= kMostCount && header.vocab_size >= 1 &&
         header.vocab_size <= std::numeric_limits<std::int32_t>::max() &&
         header.end_of_document < header.vocab_size &&
         header.token_bytes ==
             static_cast<std::uint64_t>(token_width(static_cast<std::int64_t>(header.vocab_size)));
}

}  // namespace

std::uint64_t block_checksum(std::string_view block) {
  return XXH3_64bits(block.data(), block.size());
}

ShardLayout shard_layout(const TokenShardInfo& info) {
  const auto token_bytes =
      static_cast<std::uint64_t>(info.tokens) * static_cast<std::uint64_t>(info.token_bytes);
  ShardLayout layout;
  layout.tokens = kHeaderBytes;
  layout.begins = kHeaderBytes + (token_bytes + 7) / 8 * 8;
  layout.checksums = layout.begins + (static_cast<std::uint64_t>(info.documents) + 1) * 8;
  layout.end = layout.checksums + layout.blocks() * 8;
  return layout;
}

std::string encode_header(const TokenShardInfo& info) {
  Header header{};
  std::memcpy(header.magic, kMagic.data(), kMagic.size());
  header.version = kVersion;
  header.token_bytes = static_cast<std::uint64_t>(info.token_bytes);
  header.vocab_size = static_cast<std::uint64_t>(info.vocab_size);
  header.end_of_document = static_cast<std::uint64_t>(info.end_of_document);
  header.documents = static_cast<std::uint64_t>(info.documents);
  header.tokens = static_cast<std::uint64_t>(info.tokens);
  header.block_bytes = kBlockBytes;
  header.checksum = header_checksum(header);
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

TokenShardInfo decode_header(std::string_view file, const std::string& path) {
  SMP_REQUIRE(file.substr(0, kMagic.size()) == kMagic, path,
              ": is no token shard: bytes 0 to 7 are not \"SMPTOK\\x1a\\n\"");
  SMP_REQUIRE(file.size() >= kHeaderBytes, path, ": the token shard is cut short: it has ",
              file.size(), " bytes, its header ", kHeaderBytes);
  Header header;
  std::memcpy(&header, file.data(), sizeof(header));
  SMP_REQUIRE(header.version == kVersion, path, ": is a token shard of version ", header.version,
              ", and this program reads version ", kVersion, ", or bytes 8 to 15 are damaged");
  SMP_REQUIRE(header.checksum == header_checksum(header), path,
              ": the header of the token shard is damaged (bytes 0 to ", kHeaderBytes - 1, ")");
  SMP_REQUIRE(makes_sense(header), path, ": the header of the token shard (bytes 0 to ",
              kHeaderBytes - 1, ") has impossible numbers: ", header.documents, " documents, ",
              header.tokens, " tokens of ", header.token_bytes, " bytes, vocabulary ",
              header.vocab_size, ", end of document ", header.end_of_document, ", blocks of ",
              header.block_bytes);
  TokenShardInfo info;
  info.documents = static_cast<std::int64_t>(header.documents);
  info.tokens = static_cast<std::int64_t>(header.tokens);
  info.vocab_size = static_cast<std::int64_t>(header.vocab_size);
  info.end_of_document = static_cast<std::int32_t>(header.end_of_document);
  info.token_bytes = static_cast<int>(header.token_bytes);
  const auto expected = shard_layout(info).end;
  SMP_REQUIRE(file.size() == expected, path, ": the token shard is ",
              file.size() < expected ? "cut short" : "longer than it should be", ": it has ",
              file.size(), " bytes, and its header says ", expected);
  return info;
}

}  // namespace smp::data
