// data/documents/text_files.cpp: lines, JSON lines and whole files.
#include <utility>

#include "base/check.h"
#include "base/text/utf8.h"
#include "config/json.h"
#include "data/documents/document_file.h"
#include "data/files/line_index.h"
#include "data/files/mapped_input.h"

namespace smp::data {
namespace {

// Where the first byte is that belongs to no character.
std::size_t valid_bytes(std::string_view text) {
  auto left = text;
  while (!left.empty()) {
    const auto length = base::character_length(left);
    if (length == 0) break;
    left.remove_prefix(length);
  }
  return text.size() - left.size();
}

// `text` lies in `file`; `place` is called only to complain.
template <class Place>
void require_utf8(std::string_view text, const MappedInput& file, const Place& place) {
  if (base::is_utf8(text)) return;
  const auto at = valid_bytes(text);
  throw UsageError(base::concat(
      place(), ": byte ", text.data() + at - file.bytes().data(), " of the file, 0x", std::hex,
      static_cast<unsigned>(static_cast<unsigned char>(text[at])), std::dec,
      ", is no UTF-8 text: convert the file, or set skip_damaged to leave such documents out"));
}

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
    require_utf8(line, file_, [&] { return place(number); });
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
    require_utf8(file_.bytes(), file_, [&] { return path(); });
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
