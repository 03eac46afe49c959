// data/shards/token_shard_writer.cpp: the body passes through a buffer of one block, whose checksum
// is taken when it is full.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/replacement_file.h"
#include "data/shards/shard_format.h"
#include "smp/data/token_shard.h"

namespace smp::data {
namespace {

template <class T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

class TokenShardWriter::Impl {
 public:
  Impl(const std::string& path, std::int64_t vocab_size, std::int32_t end_of_document)
      : path_(path), file_(path) {
    info_.vocab_size = vocab_size;
    info_.end_of_document = end_of_document;
    info_.token_bytes = token_width(vocab_size);
    block_.reserve(kBlockBytes);
  }

  void append(std::span<const std::int32_t> tokens) {
    require_open();
    for (const auto token : tokens) {
      SMP_REQUIRE(token >= 0 && token < info_.vocab_size, path_, ": document ", info_.documents,
                  " has token ", token, ", but the vocabulary has ", info_.vocab_size);
    }
    broken_ = true;  // until all of it is written: half of a document would be another one's
    if (info_.token_bytes == 2) {
      narrow_.assign(tokens.begin(), tokens.end());
      write(bytes_of(std::span<const std::uint16_t>(narrow_)));
    } else {
      write(bytes_of(tokens));
    }
    info_.tokens += static_cast<std::int64_t>(tokens.size());
    ++info_.documents;
    begins_.push_back(static_cast<std::uint64_t>(info_.tokens));
    broken_ = false;
  }

  TokenShardInfo finish() {
    require_open();
    finished_ = true;
    const auto layout = shard_layout(info_);
    write(std::string(layout.begins - written_, '\0'));
    write(bytes_of(std::span<const std::uint64_t>(begins_)));
    if (!block_.empty()) end_block();
    file_.write_at(written_, bytes_of(std::span<const std::uint64_t>(checksums_)));
    file_.write_at(0, encode_header(info_));
    file_.commit();
    return info_;
  }

 private:
  void require_open() const {
    SMP_REQUIRE(!finished_, path_, ": this token shard is finished");
    SMP_REQUIRE_AS(
        ResourceError, !broken_, path_,
        ": a document of this token shard could not be written; make room, and write the "
        "shard anew");
  }
  void write(std::string_view bytes) {
    written_ += bytes.size();
    while (!bytes.empty()) {
      const auto taken = std::min(bytes.size(), kBlockBytes - block_.size());
      block_ += bytes.substr(0, taken);
      bytes.remove_prefix(taken);
      if (block_.size() == kBlockBytes) end_block();
    }
  }
  void end_block() {
    file_.write_at(kHeaderBytes + checksums_.size() * kBlockBytes, block_);
    checksums_.push_back(block_checksum(block_));
    block_.clear();
  }

  std::string path_;
  base::ReplacementFile file_;
  TokenShardInfo info_;
  std::string block_;
  std::uint64_t written_ = kHeaderBytes;  // the block that is being filled included
  std::vector<std::uint16_t> narrow_;
  std::vector<std::uint64_t> begins_ = {0};
  std::vector<std::uint64_t> checksums_;
  bool finished_ = false;
  bool broken_ = false;
};

TokenShardWriter::TokenShardWriter(const std::string& path, std::int64_t vocab_size,
                                   std::int32_t end_of_document) {
  SMP_REQUIRE(vocab_size >= 1 && vocab_size <= std::numeric_limits<std::int32_t>::max(), path,
              ": a vocabulary of ", vocab_size, " tokens; 1 to 2147483647 are possible");
  SMP_REQUIRE(end_of_document >= 0 && end_of_document < vocab_size, path,
              ": the end of a document is token ", end_of_document, ", but the vocabulary has ",
              vocab_size);
  impl_ = std::make_unique<Impl>(path, vocab_size, end_of_document);
}

TokenShardWriter::~TokenShardWriter() = default;

void TokenShardWriter::append(std::span<const std::int32_t> tokens) { impl_->append(tokens); }

TokenShardInfo TokenShardWriter::finish() { return impl_->finish(); }

}  // namespace smp::data
