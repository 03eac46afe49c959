// data/tokenizers/sentencepiece_training.cpp: lines of files to a model.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/text/excerpt.h"
#include "data/files/line_index.h"
#include "data/files/mapped_input.h"
#include "data/tokenizers/sentencepiece_library.h"
#include "smp/data/sentencepiece.h"

namespace smp::data {
namespace {

constexpr std::int64_t kFewestPieces = 260;
constexpr std::size_t kMostLineBytes = 1'000'000;  // the trainer leaves longer ones out

/// Returns how much of `text` is one sentence to the trainer: all of it, or, since it counts words,
/// what is before the last space that leaves it short enough; without one, whole characters.
std::size_t sentence_bytes(std::string_view text) {
  if (text.size() <= kMostLineBytes) return text.size();
  const auto space = text.rfind(' ', kMostLineBytes);
  if (space != std::string_view::npos && space > 0) return space;
  auto end = kMostLineBytes;
  while (end > 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

/// The lines of several files, one after the other, long ones in parts.
class TrainingLines {
 public:
  explicit TrainingLines(const std::vector<std::string>& paths) {
    for (const auto& path : paths) {
      files_.push_back(std::make_unique<MappedInput>(path));
      indices_.emplace_back(files_.back()->bytes());
    }
  }
  const char* next(std::size_t* length) {
    if (rest_.empty() && !take_line()) return nullptr;
    const auto sentence = rest_.substr(0, sentence_bytes(rest_));
    rest_.remove_prefix(sentence.size());
    *length = sentence.size();
    return sentence.data();
  }
  SmpSentencePieceLines lines() {
    return {[](void* from, std::size_t* length) {
              return static_cast<TrainingLines*>(from)->next(length);
            },
            this};
  }

 private:
  /// Returns false after the last line; empty ones teach nothing.
  bool take_line() {
    while (file_ < indices_.size()) {
      if (line_ == indices_[file_].size()) {
        ++file_;
        line_ = 0;
        continue;
      }
      rest_ = indices_[file_].line(line_++);
      if (!rest_.empty()) return true;
    }
    return false;
  }

  std::vector<std::unique_ptr<MappedInput>> files_;
  std::vector<LineIndex> indices_;
  std::size_t file_ = 0;
  std::int64_t line_ = 0;
  std::string_view rest_;  // of the line before that
};

}  // namespace

void train_sentencepiece(const SentencePieceTraining& training) {
  const auto& calls = sentencepiece_calls();
  SMP_REQUIRE(!training.files.empty(), "train_sentencepiece() was given no files");
  SMP_REQUIRE(training.vocab_size >= kFewestPieces && training.vocab_size <= 1 << 24,
              "a vocabulary of ", training.vocab_size, " pieces cannot be trained: ", kFewestPieces,
              " are the fewest, for <unk>, <s>, </s>, 256 bytes and one more");
  SMP_REQUIRE(training.character_coverage > 0.9 && training.character_coverage <= 1,
              "character_coverage is ", training.character_coverage, "; above 0.9, to 1");
  TrainingLines lines(training.files);
  std::string model;
  std::string error;
  const bool trained = calls.train(training.vocab_size, training.character_coverage, lines.lines(),
                                   into(model), into(error));
  SMP_REQUIRE(trained, "no SentencePiece model of ", training.vocab_size, " pieces out of ",
              training.files.front(), training.files.size() > 1 ? " and others" : "", ": ",
              base::excerpt(error, 300));
  base::write_file(training.model, model);
}

}  // namespace smp::data
