// smp/data/tokenizer.h: from text to the numbers of tokens, and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smp/detail/export.h"

namespace smp::data {

/// Turns text into tokens: numbers from 0 to vocab_size() - 1. Derive from it for one of your own.
/// Threads: those of a TokenLoader call encode() at the same time.
class SMP_API Tokenizer {
 public:
  virtual ~Tokenizer();

  /// Appends the tokens of `text`, which is valid UTF-8, to `tokens`. Adds neither a begin nor an
  /// end of the document.
  /// @throws Error  the text has no tokens
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  /// Returns the text of `tokens`. Where they are no whole text (half of a character), the result
  /// may be no valid UTF-8.
  /// @throws UsageError  one is not below vocab_size(), or negative
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;
  /// Number of tokens, special ones included.
  virtual std::int64_t vocab_size() const = 0;
  /// The token that a TokenLoader puts behind every document.
  virtual std::int32_t end_of_document() const = 0;
  /// Name and kind, for messages: "bytes", "SentencePiece model llama.model".
  virtual std::string name() const = 0;
};

/// Returns the tokenizer whose tokens 0 to 255 are the bytes of UTF-8 text, and 256 the end of a
/// document: vocab_size() is 257. decode() leaves ends of documents out.
SMP_API std::shared_ptr<const Tokenizer> bytes_tokenizer();

}  // namespace smp::data
