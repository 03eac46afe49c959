// data/shards/token_source.h: documents that are tokens already, in any format.
#pragma once

#include <cstdint>
#include <string>

#include "data/shards/token_span.h"
#include "smp/data/token_shard.h"

namespace smp::data {

/// Documents of tokens in a mapped file. Threads: any.
class TokenSource {
 public:
  /// Which of the file's tokens a document has.
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };

  virtual ~TokenSource() = default;
  /// `token_bytes` is the width of spans.
  virtual const TokenShardInfo& info() const noexcept = 0;
  virtual const std::string& path() const noexcept = 0;
  /// @throws UsageError  what says where documents begin is damaged there
  virtual Range document(std::int64_t number) const = 0;
  /// Returns tokens begin to end - 1, in the mapped file.
  /// @throws UsageError  they are damaged, or beyond the vocabulary
  virtual TokenSpan tokens(std::int64_t begin, std::int64_t end) const = 0;
};

}  // namespace smp::data
