// data/shards/megatron_tokens.h: the pair of files that Megatron-LM keeps tokens in.
#pragma once

#include <cstdint>
#include <string>

#include "data/files/mapped_input.h"
#include "data/shards/token_source.h"

namespace smp::data {

/// What the files do not say of their tokens.
struct MegatronVocabulary {
  std::int64_t size = 0;
  std::int32_t end_of_document = -1;
};

/// `PREFIX.bin`, tokens one behind the other, and `PREFIX.idx`: where sequences begin, and which
/// are a document. A document that ends with an end of document is given without it. There are no
/// checksums: places that are impossible are found, and tokens beyond the vocabulary.
class MegatronTokens final : public TokenSource {
 public:
  /// Constant time. `path` is that of either file, or PREFIX.
  /// @throws UsageError  a file cannot be read, is no such file, is cut short or of another pair,
  ///                     holds other than 16-bit unsigned or 32-bit signed numbers, or the
  ///                     vocabulary is none
  MegatronTokens(const std::string& path, const MegatronVocabulary& vocabulary);

  const TokenShardInfo& info() const noexcept override { return info_; }
  /// That of the tokens.
  const std::string& path() const noexcept override { return tokens_.path(); }
  Range document(std::int64_t number) const override;
  TokenSpan tokens(std::int64_t begin, std::int64_t end) const override;

 private:
  void read_header();
  void check_ends() const;
  template <class Number>
  Number number_at(std::uint64_t offset) const;
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t pointer(std::int64_t sequence) const;
  std::int64_t first_sequence(std::int64_t document) const;
  TokenSpan span(std::int64_t begin, std::int64_t end) const;

  MappedInput index_;
  MappedInput tokens_;
  TokenShardInfo info_;
  std::int64_t sequences_ = 0;
};

}  // namespace smp::data
