// partition/text/text_table.h: columns for a terminal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smp::partitioning {

/// Lines of aligned columns, two blanks apart. Cells that are too long go on in the next line,
/// broken behind a comma or blank where there is one.
class TextTable {
 public:
  struct Column {
    std::string title;
    bool right = false;  ///< numbers
    int width = 0;       ///< most characters; 0: as many as the longest cell has
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add_row(std::vector<std::string> cells);
  /// A line of running text below the last row, from the column `column` on.
  void add_note(std::string text, int column);
  /// @param width  of the notes, from the left edge of the table.
  std::string finish(int width) const;

 private:
  struct Line {
    std::vector<std::string> cells;  // of a row
    std::string note;
    int column = 0;  // of the note
  };
  std::vector<int> widths() const;
  std::string row_text(const std::vector<std::string>& cells, const std::vector<int>& widths) const;

  std::vector<Column> columns_;
  std::vector<Line> lines_;
};

/// Characters of UTF-8 text, each taken for one column wide.
int text_width(std::string_view text);

/// `text` in pieces of at most `width` characters, broken behind blanks; else, in a dotted path,
/// behind a dot; else where it must.
std::vector<std::string> wrapped(std::string_view text, int width);

}  // namespace smp::partitioning
