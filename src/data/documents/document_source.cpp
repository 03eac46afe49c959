// data/documents/document_source.cpp: see the header; and the public Documents.
#include "data/documents/document_source.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace smp::data {

DocumentSource::DocumentSource(std::vector<DocumentFilePtr> files) : files_(std::move(files)) {
  std::int64_t end = 0;
  for (const auto& file : files_) ends_.push_back(end += file->size());
}

Documents DocumentSource::documents(std::vector<DocumentFilePtr> files) {
  return Documents(std::make_shared<const DocumentSource>(std::move(files)));
}

std::int64_t DocumentSource::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes();
  return bytes;
}

DocumentSource::Found DocumentSource::find(std::int64_t number) const {
  SMP_REQUIRE(number >= 0 && number < size(), "there is no document ", number, ": there are ",
              size(), ", from 0 on");
  const auto file = std::upper_bound(ends_.begin(), ends_.end(), number) - ends_.begin();
  const auto before = file == 0 ? 0 : ends_[static_cast<std::size_t>(file - 1)];
  return {*files_[static_cast<std::size_t>(file)], number - before};
}

std::string DocumentSource::place(std::int64_t number) const {
  const auto found = find(number);
  return found.file.place(found.number);
}

std::uint64_t DocumentSource::fingerprint() const {
  std::uint64_t key = 0;
  for (const auto& file : files_) {
    key = base::mix_key(key, static_cast<std::uint64_t>(file->size()));
    key = base::mix_key(key, static_cast<std::uint64_t>(file->bytes()));
  }
  return key;
}

Documents::Documents(std::shared_ptr<const DocumentSource> source) : source_(std::move(source)) {}

std::int64_t Documents::size() const { return source_->size(); }

std::string Documents::place(std::int64_t number) const { return source_->place(number); }

std::vector<std::string> Documents::files() const {
  std::vector<std::string> paths;
  for (const auto& file : source_->files()) paths.push_back(file->path());
  return paths;
}

}  // namespace smp::data
