// data/documents/text_files.cpp: lines, JSON lines and whole files.
#include <utility>

#include "base/check.h"
#include "config/json.h"
#include "data/documents/document_file.h"
#include "data/documents/utf8_check.h"
#include "data/files/line_index.h"
#include "data/files/mapped_input.h"

namespace smp::data {
namespace {

class TextLines : public DocumentFile {
 public:
  explicit TextLines(const std::string& path) : file_(path), lines_(file_.bytes()) {}

  std::int64_t size() const override { return lines_.size(); }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(file_.bytes().size()); }
  const std::string& path() const override { return file_.path(); }
  std::string place(std::int64_t number) const override {
    return base::concat(path(), ":", lines_.line_of_file(number));
  }
  std::string_view text(std::int64_t number, std::string&) const override {
    const auto line = lines_.line(number);
    require_utf8(line, file_.bytes(), [&] { return place(number); });
    return line;
  }

 private:
  MappedInput file_;
  LineIndex lines_;
};

class JsonLines final : public TextLines {
 public:
  JsonLines(const std::string& path, std::string field)
      : TextLines(path), field_(std::move(field)) {}

  std::string_view text(std::int64_t number, std::string& storage) const override {
    const auto line = TextLines::text(number, storage);
    try {
      // Its own messages cannot begin with the place, which takes as long as reading the file.
      const auto object = base::parse_json(line, "");
      storage = base::json_member<std::string>(object, field_, "");
    } catch (const UsageError& error) {
      throw UsageError(base::concat(place(number), error.what(),
                                    " (set skip_damaged to leave such documents out)"));
    }
    return storage;
  }

 private:
  std::string field_;
};

class WholeFile final : public DocumentFile {
 public:
  explicit WholeFile(const std::string& path) : file_(path) {}

  std::int64_t size() const override { return file_.bytes().empty() ? 0 : 1; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(file_.bytes().size()); }
  const std::string& path() const override { return file_.path(); }
  std::string place(std::int64_t) const override { return path(); }
  std::string_view text(std::int64_t, std::string&) const override {
    require_utf8(file_.bytes(), file_.bytes(), [&] { return path(); });
    return file_.bytes();
  }

 private:
  MappedInput file_;
};

}  // namespace

DocumentFilePtr open_text_lines(const std::string& path) {
  return std::make_shared<const TextLines>(path);
}

DocumentFilePtr open_json_lines(const std::string& path, const std::string& field) {
  return std::make_shared<const JsonLines>(path, field);
}

DocumentFilePtr open_whole_file(const std::string& path) {
  return std::make_shared<const WholeFile>(path);
}

}  // namespace smp::data
