// data/shards/token_shard.cpp: nothing of the body is believed before its block's checksum is
// right.
#include "data/shards/token_shard.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace smp::data {
namespace {

// The largest token, without a branch for each, so that it is as fast as the checksum.
template <class Stored>
std::uint32_t largest(const char* bytes, std::uint64_t size) {
  const auto* const tokens = reinterpret_cast<const Stored*>(bytes);
  Stored most = 0;
  for (std::uint64_t i = 0; i < size / sizeof(Stored); ++i) most = std::max(most, tokens[i]);
  return most;
}

}  // namespace

TokenShard::TokenShard(const std::string& path)
    : file_(path),
      info_(decode_header(file_.bytes(), path)),
      layout_(shard_layout(info_)),
      right_(std::make_unique<std::atomic<std::uint64_t>[]>(layout_.blocks() / 64 + 1)) {}

TokenShard::Range TokenShard::document(std::int64_t number) const {
  SMP_ASSERT(number >= 0 && number < info_.documents, number, " of ", info_.documents);
  const auto at = layout_.begins + static_cast<std::uint64_t>(number) * 8;
  check_bytes(at, at + 16);
  const auto begin = number_at(at);
  const auto end = number_at(at + 8);
  SMP_REQUIRE(begin <= end && end <= static_cast<std::uint64_t>(info_.tokens), path(),
              ": document ", number, " would have tokens ", begin, " to ", end, " of ",
              info_.tokens, " (bytes ", at, " to ", at + 15, "): who wrote this shard?");
  return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)};
}

TokenSpan TokenShard::tokens(std::int64_t begin, std::int64_t end) const {
  SMP_ASSERT(begin >= 0 && begin <= end && end <= info_.tokens, begin, " to ", end);
  const auto width = static_cast<std::uint64_t>(info_.token_bytes);
  const auto first = layout_.tokens + static_cast<std::uint64_t>(begin) * width;
  const auto last = layout_.tokens + static_cast<std::uint64_t>(end) * width;
  check_bytes(first, last);
  return {reinterpret_cast<const std::byte*>(file_.bytes().data()) + first, info_.token_bytes,
          end - begin};
}

void TokenShard::check() const {
  check_bytes(layout_.tokens, layout_.checksums);
  std::int64_t before = 0;
  for (std::int64_t number = 0; number < info_.documents; ++number) {
    const auto [begin, end] = document(number);
    SMP_REQUIRE(begin == before, path(), ": document ", number, " begins at token ", begin,
                ", but the one before it ends at ", before);
    before = end;
  }
  SMP_REQUIRE(before == info_.tokens, path(), ": ", info_.tokens - before,
              " tokens belong to no document");
}

void TokenShard::check_bytes(std::uint64_t begin, std::uint64_t end) const {
  if (begin == end) return;
  const auto last = (end - 1 - layout_.tokens) / kBlockBytes;
  for (auto block = (begin - layout_.tokens) / kBlockBytes; block <= last; ++block) {
    const auto bit = std::uint64_t{1} << (block % 64);
    auto& word = right_[block / 64];
    if (word.load(std::memory_order_relaxed) & bit) continue;
    check_block(block);
    word.fetch_or(bit, std::memory_order_relaxed);
  }
}

void TokenShard::check_block(std::uint64_t block) const {
  const auto begin = layout_.block_begin(block);
  const auto end = layout_.block_end(block);
  const auto expected = number_at(layout_.checksums + block * 8);
  const auto found = block_checksum(file_.bytes().substr(begin, end - begin));
  SMP_REQUIRE(found == expected, path(), ": bytes ", begin, " to ", end - 1,
              " of the token shard are damaged, or their checksum (bytes ",
              layout_.checksums + block * 8, " to ", layout_.checksums + block * 8 + 7,
              ") is: copy or pack the file again, or set skip_damaged");
  check_vocabulary(begin, std::min(end, layout_.begins));
}

void TokenShard::check_vocabulary(std::uint64_t begin, std::uint64_t end) const {
  if (begin >= end) return;
  const auto* const bytes = file_.bytes().data() + begin;
  const auto most = info_.token_bytes == 2 ? largest<std::uint16_t>(bytes, end - begin)
                                           : largest<std::uint32_t>(bytes, end - begin);
  SMP_REQUIRE(most < static_cast<std::uint64_t>(info_.vocab_size), path(), ": bytes ", begin,
              " to ", end - 1, " of the token shard hold token ", most, ", but its vocabulary has ",
              info_.vocab_size, ": who wrote this shard?");
}

std::uint64_t TokenShard::number_at(std::uint64_t offset) const {
  std::uint64_t number;
  std::memcpy(&number, file_.bytes().data() + offset, sizeof(number));
  return number;
}

TokenShardInfo token_shard_info(const std::string& path) {
  const MappedInput file(path);
  return decode_header(file.bytes(), path);
}

void check_token_shard(const std::string& path) { TokenShard(path).check(); }

}  // namespace smp::data
