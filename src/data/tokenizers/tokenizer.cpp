// data/tokenizers/tokenizer.cpp: the vtable, and bytes.
#include "smp/data/tokenizer.h"

#include "base/check.h"

namespace smp::data {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    const auto before = tokens.size();
    tokens.resize(before + text.size());
    std::int32_t* to = tokens.data() + before;
    for (const char byte : text) *to++ = static_cast<unsigned char>(byte);
  }
  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const auto token : tokens) {
      SMP_REQUIRE(token >= 0 && token < vocab_size(), "there is no token ", token,
                  ": tokens of bytes are 0 to 255, and 256 at the end of a document");
      if (token != end_of_document()) text += static_cast<char>(token);
    }
    return text;
  }
  std::int64_t vocab_size() const override { return 257; }
  std::int32_t end_of_document() const override { return 256; }
  std::string name() const override { return "bytes"; }
};

}  // namespace

Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> bytes_tokenizer() {
  static const auto tokenizer = std::make_shared<const BytesTokenizer>();
  return tokenizer;
}

}  // namespace smp::data
