// data/tokenizers/sentencepiece.cpp: a model of SentencePiece as a Tokenizer.
#include "smp/data/sentencepiece.h"

#include <atomic>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/text/excerpt.h"
#include "data/tokenizers/sentencepiece_library.h"
#include "data/tokenizers/word_cache.h"

namespace smp::data {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path)
      : path_(path), model_(open_sentencepiece(path)), by_words_(encodes_words_alone(model_)) {
    SMP_REQUIRE(end_of_document() >= 0, path,
                ": this model has no </s>, the end of a document; train it with one");
  }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    if (!by_words_ || text.find(kSpaceSign) != std::string_view::npos) {
      return encode_text(model_, text, tokens);
    }
    auto& cache = own_cache();
    while (!text.empty()) {
      const auto word = take_word(text);
      if (cache.append(word, tokens)) continue;
      const auto before = tokens.size();
      encode_text(model_, word, tokens);
      cache.remember(word, std::span(tokens).subspan(before));
    }
  }
  std::string decode(std::span<const std::int32_t> tokens) const override {
    for (const auto token : tokens) {
      SMP_REQUIRE(token >= 0 && token < vocab_size(), name(), " has no token ", token,
                  ": its tokens are 0 to ", vocab_size() - 1);
    }
    return decode_tokens(model_, tokens);
  }
  std::int64_t vocab_size() const override {
    return sentencepiece_calls().vocab_size(model_.get());
  }
  std::int32_t end_of_document() const override {
    return sentencepiece_calls().end_token(model_.get());
  }
  std::string name() const override { return "SentencePiece model " + path_; }

 private:
  // Of this thread; it remembers words of the model that this thread used last.
  WordCache& own_cache() const {
    thread_local WordCache cache;
    thread_local std::uint64_t owner = 0;
    if (owner != number_) cache.forget_all();
    owner = number_;
    return cache;
  }
  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last = 0;
    return ++last;
  }

  std::string path_;
  SentencePieceModel model_;
  bool by_words_;
  std::uint64_t number_ = next_number();  // no other tokenizer ever has it
};

}  // namespace

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(const std::string& path) {
  return std::make_shared<const SentencePieceTokenizer>(path);
}

}  // namespace smp::data
