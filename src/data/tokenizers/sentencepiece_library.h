// data/tokenizers/sentencepiece_library.h: libsmp_sentencepiece.so, loaded when it is first needed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sentencepiece/interface.h"

namespace smp::data {

/// Returns the library's calls. Any thread.
/// @throws UnsupportedError  there is no library, or it cannot be loaded
const SmpSentencePieceCalls& sentencepiece_calls();

/// Sinks that append.
SmpSentencePieceSink into(std::string& text);
SmpSentencePieceSink into(std::vector<std::int32_t>& tokens);

/// U+2581, which stands for a space within pieces.
inline constexpr std::string_view kSpaceSign = "\xe2\x96\x81";

/// An open model.
using SentencePieceModel = std::unique_ptr<void, void (*)(void*)>;
/// @throws UsageError  the file `path` cannot be read, or is no model
SentencePieceModel open_sentencepiece(const std::string& path);

/// Appends the tokens of `text` to `tokens`.
void encode_text(const SentencePieceModel& model, std::string_view text,
                 std::vector<std::int32_t>& tokens);
/// All tokens must be below the size of the vocabulary.
std::string decode_tokens(const SentencePieceModel& model, std::span<const std::int32_t> tokens);

/// True if a model encodes words one by one as it encodes a text: nothing is put before or left out
/// of a text, neighbours are joined by one rule (byte-pair encoding), and no piece goes beyond the
/// end of a word. So are models of train_sentencepiece().
bool encodes_words_alone(const SentencePieceModel& model);

}  // namespace smp::data
