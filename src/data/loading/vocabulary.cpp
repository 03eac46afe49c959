// data/loading/vocabulary.cpp: see the header.
#include "data/loading/vocabulary.h"

#include <optional>

#include "base/check.h"

namespace smp::data {
namespace {

/// Compares all vocabularies with the first one.
class CommonVocabulary {
 public:
  void add(const Vocabulary& other) {
    if (!common_) common_ = other;
    SMP_REQUIRE(common_->size == other.size && common_->end_of_document == other.end_of_document,
                other.name, " has ", other.size, " tokens and the end of document ",
                other.end_of_document, ", but ", common_->name, " has ", common_->size, " and ",
                common_->end_of_document, ": pack the shard with this tokenizer");
  }
  Vocabulary get() const { return *common_; }

 private:
  std::optional<Vocabulary> common_;
};

}  // namespace

Vocabulary common_vocabulary(const DocumentSource& source, const Tokenizer* tokenizer) {
  CommonVocabulary common;
  if (tokenizer != nullptr) {
    common.add({tokenizer->vocab_size(), tokenizer->end_of_document(), tokenizer->name()});
  }
  for (const auto& file : source.files()) {
    if (const auto* const shard = file->shard()) {
      common.add({shard->info().vocab_size, shard->info().end_of_document, file->path()});
    } else {
      SMP_REQUIRE(tokenizer != nullptr, file->path(), ": is text, and no tokenizer was given");
    }
  }
  return common.get();
}

}  // namespace smp::data
