// data/files/line_index.cpp: memchr finds ends of lines as fast as memory is read.
#include "data/files/line_index.h"

#include <algorithm>

#include "base/check.h"

namespace smp::data {
namespace {

constexpr std::int64_t kStride = 8;
constexpr std::string_view kSpaces = " \t\r\v\f";

/// Takes one line after another off a text.
class LineCursor {
 public:
  LineCursor(std::string_view text, std::size_t begin) : text_(text), next_(begin) {}

  /// Goes to the next line that is not blank; false: there is none.
  bool advance() {
    while (next_ < text_.size()) {
      begin_ = next_;
      const auto end = text_.find('\n', begin_);
      next_ = end == std::string_view::npos ? text_.size() : end + 1;
      line_ = text_.substr(begin_, std::min(end, text_.size()) - begin_);
      if (line_.find_first_not_of(kSpaces) != std::string_view::npos) return true;
    }
    return false;
  }
  std::size_t begin() const { return begin_; }
  std::string_view line() const {
    return line_.ends_with('\r') ? line_.substr(0, line_.size() - 1) : line_;
  }

 private:
  std::string_view text_;
  std::size_t next_;
  std::size_t begin_ = 0;
  std::string_view line_;
};

}  // namespace

LineIndex::LineIndex(std::string_view text) : text_(text) {
  for (LineCursor cursor(text, 0); cursor.advance(); ++size_) {
    if (size_ % kStride == 0) begins_.push_back(cursor.begin());
  }
}

std::string_view LineIndex::line(std::int64_t number) const {
  SMP_ASSERT(number >= 0 && number < size_, number, " of ", size_);
  LineCursor cursor(text_, begins_[static_cast<std::size_t>(number / kStride)]);
  for (std::int64_t left = number % kStride; left >= 0; --left) cursor.advance();
  return cursor.line();
}

std::int64_t LineIndex::line_of_file(std::int64_t number) const {
  return 1 + std::count(text_.data(), line(number).data(), '\n');
}

}  // namespace smp::data
