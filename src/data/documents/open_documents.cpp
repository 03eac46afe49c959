// data/documents/open_documents.cpp: which format a file has.
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "data/datasets/saved_dataset.h"
#include "data/documents/document_source.h"

namespace smp::data {
namespace {

Format format_of(const std::string& path) {
  const std::filesystem::path name(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(name, ignored)) {
    SMP_REQUIRE(is_saved_dataset(path), path,
                ": is a folder without a state.json, so no data set that `datasets` saved: name "
                "the files in it");
    return Format::kArrow;
  }
  const auto extension = name.extension();
  SMP_REQUIRE(extension != ".arrow", path,
              ": is a file of `datasets`; name its folder, whose state.json says which files are "
              "data");
  if (extension == ".jsonl" || extension == ".ndjson") return Format::kJsonLines;
  if (extension == ".bin" || extension == ".idx") return Format::kMegatron;
  return extension == ".tokens" ? Format::kTokens : Format::kLines;
}

DocumentFilePtr open_file(const std::string& path, const DocumentOptions& options) {
  const auto format = options.format == Format::kByName ? format_of(path) : options.format;
  switch (format) {
    case Format::kLines:
      return open_text_lines(path);
    case Format::kWholeFile:
      return open_whole_file(path);
    case Format::kJsonLines:
      return open_json_lines(path, options.field);
    case Format::kTokens:
      return open_token_shard(path);
    case Format::kMegatron:
      return open_megatron_tokens(path, {options.vocab_size, options.end_of_document});
    case Format::kArrow:
      return open_dataset_folder(path, options.field);
    case Format::kByName:
      break;
  }
  throw UsageError(base::concat(path, ": there is no format ", static_cast<int>(format)));
}

}  // namespace

Documents open_documents(const std::vector<std::string>& files, const DocumentOptions& options) {
  SMP_REQUIRE(!files.empty(), "open_documents() was given no files");
  std::vector<DocumentFilePtr> opened;
  for (const auto& path : files) {
    opened.push_back(open_file(path, options));
    SMP_REQUIRE(opened.back()->size() > 0, path, ": holds no documents");
  }
  return DocumentSource::documents(std::move(opened));
}

}  // namespace smp::data
