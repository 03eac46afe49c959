// data/documents/dataset_folder.cpp: a folder of `datasets` as a file of documents.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "data/datasets/arrow_stream.h"
#include "data/datasets/saved_dataset.h"
#include "data/documents/document_file.h"
#include "data/documents/utf8_check.h"

namespace smp::data {
namespace {

class DatasetFolder final : public DocumentFile {
 public:
  DatasetFolder(const std::string& path, const std::string& column) : path_(path) {
    const auto dataset = read_saved_dataset(path);
    for (const auto& file : dataset.files) {
      streams_.push_back(std::make_unique<const ArrowStream>(file, column));
      ends_.push_back(size() + streams_.back()->rows());
    }
    if (dataset.rows_of_split && *dataset.rows_of_split != size()) {
      base::log(base::LogLevel::kInfo, path, ": ", size(), " rows, all that its files were ",
                "finished with; dataset_info.json says ", *dataset.rows_of_split, " of the split ",
                dataset.split, ", which is right if these were selected from it");
    }
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t bytes() const override {
    std::size_t bytes = 0;
    for (const auto& stream : streams_) bytes += stream->file().bytes().size();
    return static_cast<std::int64_t>(bytes);
  }
  const std::string& path() const override { return path_; }
  std::string place(std::int64_t number) const override {
    const auto [stream, row] = find(number);
    return base::concat(stream.file().path(), ": row ", row);
  }
  std::string_view text(std::int64_t number, std::string&) const override {
    const auto [stream, row] = find(number);
    const auto text = text_of(stream, row, number);
    require_utf8(text, stream.file().bytes(), [&] { return place(number); });
    return text;
  }

 private:
  std::pair<const ArrowStream&, std::int64_t> find(std::int64_t number) const {
    const auto file = std::upper_bound(ends_.begin(), ends_.end(), number) - ends_.begin();
    const auto before = file == 0 ? 0 : ends_[static_cast<std::size_t>(file - 1)];
    return {*streams_[static_cast<std::size_t>(file)], number - before};
  }
  std::string_view text_of(const ArrowStream& stream, std::int64_t row, std::int64_t number) const {
    try {
      return stream.text(row);
    } catch (const UsageError& error) {
      throw UsageError(base::concat(place(number), " ", error.what(),
                                    " (set skip_damaged to leave such documents out)"));
    }
  }

  std::string path_;
  std::vector<std::unique_ptr<const ArrowStream>> streams_;
  std::vector<std::int64_t> ends_;  // rows up to and with each file
};

}  // namespace

DocumentFilePtr open_dataset_folder(const std::string& path, const std::string& column) {
  return std::make_shared<const DatasetFolder>(path, column);
}

}  // namespace smp::data
