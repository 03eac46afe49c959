// data/tokenizers/sentencepiece_library.cpp: calls of the shared object.
#include "data/tokenizers/sentencepiece_library.h"

#include <cmath>
#include <unordered_set>

#include "base/check.h"
#include "base/files.h"
#include "base/text/excerpt.h"
#include "data/plugins/own_library.h"
#include "smp/data/sentencepiece.h"

namespace smp::data {
namespace {

/// The library's calls, or why there are none.
struct Loaded {
  const SmpSentencePieceCalls* calls = nullptr;
  std::string reason;
};

Loaded load() {
  const auto library = open_own_library("libsmp_sentencepiece.so", "smp_sentencepiece_calls",
                                        "install libsentencepiece-dev (Debian) and build again");
  if (library.function == nullptr) return {nullptr, library.reason};
  return {reinterpret_cast<decltype(&smp_sentencepiece_calls)>(library.function)(), ""};
}

const Loaded& library() {
  static const Loaded loaded = load();
  return loaded;
}

// False of models that put a space before a text, leave spaces out, or take a ligature apart.
bool keeps_text(const SentencePieceModel& model) {
  for (const std::string text : {"a", " a", "a  b ", "\xef\xac\x81", "\n\t"}) {
    std::vector<std::int32_t> tokens;
    encode_text(model, text, tokens);
    if (decode_tokens(model, tokens) != text) return false;
  }
  return true;
}

}  // namespace

const SmpSentencePieceCalls& sentencepiece_calls() {
  SMP_REQUIRE_AS(UnsupportedError, library().calls != nullptr,
                 "there is no SentencePiece: ", library().reason);
  return *library().calls;
}

SmpSentencePieceSink into(std::string& text) {
  return {[](void* to, const void* bytes, std::size_t count) {
            static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), count);
          },
          &text};
}

SmpSentencePieceSink into(std::vector<std::int32_t>& tokens) {
  return {[](void* to, const void* numbers, std::size_t count) {
            const auto* const first = static_cast<const std::int32_t*>(numbers);
            auto& all = *static_cast<std::vector<std::int32_t>*>(to);
            all.insert(all.end(), first, first + count);
          },
          &tokens};
}

SentencePieceModel open_sentencepiece(const std::string& path) {
  const auto& calls = sentencepiece_calls();  // first: without the library no file matters
  const auto bytes = base::read_file(path);
  std::string error;
  SentencePieceModel model(calls.open(bytes.data(), bytes.size(), into(error)), calls.close);
  SMP_REQUIRE(model != nullptr, path, ": is no model of SentencePiece: ", base::excerpt(error));
  return model;
}

void encode_text(const SentencePieceModel& model, std::string_view text,
                 std::vector<std::int32_t>& tokens) {
  std::string error;
  const bool encoded = sentencepiece_calls().encode(model.get(), text.data(), text.size(),
                                                    into(tokens), into(error));
  SMP_REQUIRE(encoded, "SentencePiece cannot encode ", base::excerpt(text), ": ", error);
}

std::string decode_tokens(const SentencePieceModel& model, std::span<const std::int32_t> tokens) {
  std::string text;
  std::string error;
  const bool decoded = sentencepiece_calls().decode(model.get(), tokens.data(), tokens.size(),
                                                    into(text), into(error));
  SMP_REQUIRE(decoded, "SentencePiece cannot decode ", tokens.size(), " tokens: ", error);
  return text;
}

bool encodes_words_alone(const SentencePieceModel& model) {
  const auto& calls = sentencepiece_calls();
  bool bytes = false;
  std::unordered_set<float> scores;
  for (std::int32_t token = 0; token < calls.vocab_size(model.get()); ++token) {
    std::string piece;
    float score = 0;
    const auto kind = calls.piece(model.get(), token, into(piece), &score);
    bytes |= kind == kBytePiece;
    if (kind != kNormalPiece) continue;
    // A probability is of a unigram model; the score of a symbol of a user's own is that of
    // another.
    if (score != std::floor(score) || !scores.insert(score).second) return false;
    auto rest = std::string_view(piece);
    while (rest.starts_with(kSpaceSign)) rest.remove_prefix(kSpaceSign.size());
    if (rest.find(kSpaceSign) != std::string_view::npos) return false;
  }
  return bytes && keeps_text(model);
}

bool has_sentencepiece() { return library().calls != nullptr; }

}  // namespace smp::data
