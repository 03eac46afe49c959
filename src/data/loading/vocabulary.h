// data/loading/vocabulary.h: the tokens that documents are made of.
#pragma once

#include <cstdint>
#include <string>

#include "data/documents/document_source.h"
#include "smp/data/tokenizer.h"

namespace smp::data {

struct Vocabulary {
  std::int64_t size;
  std::int32_t end_of_document;
  std::string name;  ///< where it comes from
};

/// Returns the vocabulary of the tokenizer, which may be nullptr, and of every shard.
/// @throws UsageError  they differ, or there is text without a tokenizer
Vocabulary common_vocabulary(const DocumentSource& source, const Tokenizer* tokenizer);

}  // namespace smp::data
