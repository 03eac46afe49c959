// data/documents/document_file.h: the documents of one file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/shards/megatron_tokens.h"
#include "data/shards/token_source.h"
#include "smp/data/documents.h"

namespace smp::data {

/// Documents 0 to size() - 1 of one file, either text or tokens. Threads: any.
class DocumentFile {
 public:
  virtual ~DocumentFile() = default;
  virtual std::int64_t size() const = 0;
  /// Of all documents, about: says how many are worth a visit of a thread.
  virtual std::int64_t bytes() const = 0;
  virtual const std::string& path() const = 0;
  /// Where document `number` begins, for messages. May read all of the file up to there.
  virtual std::string place(std::int64_t number) const = 0;
  /// The tokens of this file; nullptr: it holds text.
  virtual const TokenSource* shard() const { return nullptr; }
  /// Returns the text of a document, in the file or in `storage`. Only if there is no shard().
  /// @throws UsageError  it is damaged: names file and line, and what is wrong
  virtual std::string_view text(std::int64_t number, std::string& storage) const = 0;
};

using DocumentFilePtr = std::shared_ptr<const DocumentFile>;

/// Format::kLines, kJsonLines (`field` holds the text), kWholeFile.
DocumentFilePtr open_text_lines(const std::string& path);
DocumentFilePtr open_json_lines(const std::string& path, const std::string& field);
DocumentFilePtr open_whole_file(const std::string& path);
/// Format::kArrow: a folder; `column` holds the text. @throws UnsupportedError  there is no Arrow
DocumentFilePtr open_dataset_folder(const std::string& path, const std::string& column);
/// Format::kTokens
DocumentFilePtr open_token_shard(const std::string& path);
/// Format::kMegatron
DocumentFilePtr open_megatron_tokens(const std::string& path, const MegatronVocabulary& vocabulary);

}  // namespace smp::data
