// data/sentencepiece/plugin.cpp: libsmp_sentencepiece.so, which alone is linked with SentencePiece.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/sentencepiece/interface.h"

namespace {

using sentencepiece::SentencePieceProcessor;

// Of a line; longer ones would be left out without a word.
constexpr const char* kMostLineBytes = "1000000";

void put(const SmpSentencePieceSink& sink, const std::string& text) {
  sink.put(sink.to, text.data(), text.size());
}

bool succeeded(const sentencepiece::util::Status& status, const SmpSentencePieceSink& error) {
  if (!status.ok()) put(error, status.ToString());
  return status.ok();
}

// Calls `run`, which returns whether it succeeded.
template <class Run>
bool guarded(const SmpSentencePieceSink& error, const Run& run) {
  try {
    return run();
  } catch (const std::exception& thrown) {
    put(error, thrown.what());
    return false;
  }
}

const SentencePieceProcessor& of(const void* model) {
  return *static_cast<const SentencePieceProcessor*>(model);
}

void* open_model(const char* bytes, std::size_t size, SmpSentencePieceSink error) {
  auto model = std::make_unique<SentencePieceProcessor>();
  const bool opened = guarded(error, [&] {
    return succeeded(model->LoadFromSerializedProto({bytes, size}), error);
  });
  return opened ? model.release() : nullptr;
}

void close_model(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

bool encode(const void* model, const char* text, std::size_t size, SmpSentencePieceSink tokens,
            SmpSentencePieceSink error) {
  return guarded(error, [&] {
    thread_local std::vector<int> numbers;
    if (!succeeded(of(model).Encode({text, size}, &numbers), error)) return false;
    tokens.put(tokens.to, numbers.data(), numbers.size());
    return true;
  });
}

bool decode(const void* model, const std::int32_t* tokens, std::size_t count,
            SmpSentencePieceSink text, SmpSentencePieceSink error) {
  return guarded(error, [&] {
    std::string decoded;
    const std::vector<int> numbers(tokens, tokens + count);
    if (!succeeded(of(model).Decode(numbers, &decoded), error)) return false;
    put(text, decoded);
    return true;
  });
}

std::int32_t vocab_size(const void* model) { return of(model).GetPieceSize(); }

SmpSentencePieceKind piece(const void* model, std::int32_t token, SmpSentencePieceSink text,
                           float* score) {
  put(text, of(model).IdToPiece(token));
  *score = of(model).GetScore(token);
  if (of(model).IsByte(token)) return kBytePiece;
  const bool other = of(model).IsControl(token) || of(model).IsUnknown(token);
  return other || of(model).IsUnused(token) ? kOtherPiece : kNormalPiece;
}

std::int32_t end_token(const void* model) { return of(model).eos_id(); }

/// Lines of the other side, as the trainer wants them.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const SmpSentencePieceLines& lines) : lines_(lines) { Next(); }
  bool done() const override { return done_; }
  void Next() override {
    std::size_t length = 0;
    const char* const line = lines_.next(lines_.from, &length);
    done_ = line == nullptr;
    line_.assign(done_ ? "" : line, length);
  }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  SmpSentencePieceLines lines_;
  std::string line_;
  bool done_ = false;
};

bool train(std::int64_t vocab_size, double character_coverage, SmpSentencePieceLines lines,
           SmpSentencePieceSink model, SmpSentencePieceSink error) {
  return guarded(error, [&] {
    Lines source(lines);
    std::string trained;
    const std::unordered_map<std::string, std::string> settings = {
        {"model_type", "bpe"},
        {"vocab_size", std::to_string(vocab_size)},
        {"character_coverage", std::to_string(character_coverage)},
        {"byte_fallback", "true"},
        {"normalization_rule_name", "identity"},
        {"remove_extra_whitespaces", "false"},
        {"add_dummy_prefix", "false"},
        {"allow_whitespace_only_pieces", "true"},
        {"split_digits", "true"},
        {"max_sentence_length", kMostLineBytes},
        {"minloglevel", "2"}};
    const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &source, &trained);
    if (!succeeded(status, error)) return false;
    put(model, trained);
    return true;
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SmpSentencePieceCalls*
smp_sentencepiece_calls() {
  static const SmpSentencePieceCalls calls = {open_model, close_model, encode,    decode,
                                              vocab_size, piece,       end_token, train};
  return &calls;
}
