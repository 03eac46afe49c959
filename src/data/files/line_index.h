// data/files/line_index.h: the lines of a text by number, with little memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace smp::data {

/// The lines of a text that hold more than spaces, numbered from 0 on. Remembers where every
/// 8th begins. Threads: any.
class LineIndex {
 public:
  /// Looks through all of `text`, which must outlive this.
  explicit LineIndex(std::string_view text);

  std::int64_t size() const noexcept { return size_; }
  /// Returns line `number` without its end, "\n" or "\r\n".
  std::string_view line(std::int64_t number) const;
  /// Returns which line of the file that is, counted from 1, blank ones included; takes as long as
  /// reading the file up to there.
  std::int64_t line_of_file(std::int64_t number) const;

 private:
  std::string_view text_;
  std::int64_t size_ = 0;
  std::vector<std::uint64_t> begins_;  // of lines 0, 8, 16, ...
};

}  // namespace smp::data
