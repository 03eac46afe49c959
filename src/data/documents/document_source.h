// data/documents/document_source.h: what Documents hides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/documents/document_file.h"
#include "smp/data/documents.h"

namespace smp::data {

/// The documents of several files, numbered through. Threads: any.
class DocumentSource {
 public:
  /// @param files  at least one; they have documents
  explicit DocumentSource(std::vector<DocumentFilePtr> files);

  static Documents documents(std::vector<DocumentFilePtr> files);
  static const DocumentSource& of(const Documents& documents) { return *documents.source_; }

  std::int64_t size() const { return ends_.back(); }
  const std::vector<DocumentFilePtr>& files() const { return files_; }
  /// Of all files, about.
  std::int64_t bytes() const;

  /// A document, as a file and its number there.
  struct Found {
    const DocumentFile& file;
    std::int64_t number;
  };
  Found find(std::int64_t number) const;
  std::string place(std::int64_t number) const;
  /// A number that tells most other documents apart: of the files' sizes and counts in their order,
  /// not of names or contents.
  std::uint64_t fingerprint() const;

 private:
  std::vector<DocumentFilePtr> files_;
  std::vector<std::int64_t> ends_;  // documents up to and with each file
};

}  // namespace smp::data
