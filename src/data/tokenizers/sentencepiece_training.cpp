// data/tokenizers/sentencepiece_training.cpp: lines of files to a model.
#include <memory>
#include <string>
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

/// The lines of several files, one after the other.
class TrainingLines {
 public:
  explicit TrainingLines(const std::vector<std::string>& paths) {
    for (const auto& path : paths) {
      files_.push_back(std::make_unique<MappedInput>(path));
      indices_.emplace_back(files_.back()->bytes());
    }
  }
  const char* next(std::size_t* length) {
    while (file_ < indices_.size() && line_ == indices_[file_].size()) {
      ++file_;
      line_ = 0;
    }
    if (file_ == indices_.size()) return nullptr;
    const auto line = indices_[file_].line(line_++);
    *length = line.size();
    return line.data();
  }
  SmpSentencePieceLines lines() {
    return {[](void* from, std::size_t* length) {
              return static_cast<TrainingLines*>(from)->next(length);
            },
            this};
  }

 private:
  std::vector<std::unique_ptr<MappedInput>> files_;
  std::vector<LineIndex> indices_;
  std::size_t file_ = 0;
  std::int64_t line_ = 0;
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
