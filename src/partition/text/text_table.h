// partition/text/text_table.h: columns for a terminal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smp::partitioning {

/// A table of aligned columns, two blanks apart. Cells that are too long go on in the next line,
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
  /// Returns the table as text. @param width  of the notes, from the left edge of the table
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

/// Returns the number of characters of UTF-8 text; each is taken to be one column wide.
int text_width(std::string_view text);

/// Splits `text` into pieces of at most `width` characters, behind a blank if possible, else behind
/// a dot of a dotted path, else anywhere.
std::vector<std::string> wrapped(std::string_view text, int width);
/// Returns these pieces, each as a line; nothing for an empty text.
std::string wrapped_lines(std::string_view text, int width);

}  // namespace smp::partitioning
