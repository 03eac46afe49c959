// smp/data/documents.h: the documents that files hold: text, JSON lines, or tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "smp/detail/export.h"

namespace smp::data {

class DocumentSource;

/// How a file's documents are found.
enum class Format {
  /// By the name of each file: `.jsonl`, `.ndjson` are kJsonLines, `.tokens` is kTokens, `.bin` and
  /// `.idx` are kMegatron, a folder with a `state.json` is kArrow, all others are kLines.
  kByName,
  /// UTF-8 text. Every line is a document, but those of nothing but spaces; its end, "\n" or
  /// "\r\n", does not belong to it.
  kLines,
  /// UTF-8 text. The whole file is one document.
  kWholeFile,
  /// JSON Lines: every line is an object, whose member `field` is the text of a document.
  kJsonLines,
  /// A token shard (smp/data/token_shard.h).
  kTokens,
  /// A data set that Hugging Face's `datasets` saved to this folder; the column `field` is text.
  kArrow,
  /// Tokens of Megatron-LM: a pair of files, `.bin` and `.idx`, of which one is named.
  kMegatron,
};

/// What open_documents() must know of files.
struct DocumentOptions {
  Format format = Format::kByName;
  /// The member of each line's object (kJsonLines), or the column (kArrow), that holds the text.
  std::string field = "text";
  /// Of kMegatron, whose files say neither: how many tokens there are, and which one ends a
  /// document. Documents that end with it are read without, as a TokenLoader puts one behind each.
  std::int64_t vocab_size = 0;
  std::int32_t end_of_document = -1;
};

/// Documents of one or more files, numbered 0 to size() - 1 in the order of the files. Files are
/// mapped into memory and stay open; they must not be changed or cut short meanwhile. A copy
/// shares them. Threads: any.
class SMP_API Documents {
 public:
  /// Number of documents; of those, some may turn out to be damaged when they are read.
  std::int64_t size() const;
  /// Where document `number` begins, for messages: "corpus.jsonl:17", "corpus.tokens: document 4".
  std::string place(std::int64_t number) const;
  /// The files, in the order given.
  std::vector<std::string> files() const;

 private:
  friend class DocumentSource;
  explicit Documents(std::shared_ptr<const DocumentSource> source);

  std::shared_ptr<const DocumentSource> source_;
};

/// Opens `files`. Token shards open in constant time; text is looked through once for the ends of
/// its lines.
/// @throws UsageError        none is given, one cannot be read, is empty of documents, or is no
/// file
///                           of its format: names it, and where in it
/// @throws UnsupportedError  kArrow, and this build has no Arrow; says what to install
SMP_API Documents open_documents(const std::vector<std::string>& files,
                                 const DocumentOptions& options = {});

/// True if kArrow can be read in this build and on this machine.
SMP_API bool has_arrow();

}  // namespace smp::data
