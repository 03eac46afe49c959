// partition/text/text_table.cpp: widths first, then lines.
#include "partition/text/text_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace smp::partitioning {
namespace {

constexpr int kGap = 2;

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Bytes of the first `count` characters.
std::size_t prefix_bytes(std::string_view text, int count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues(text[at]) && count-- == 0) break;
  }
  return at;
}

// Of a path without blanks: after its last dot, or all of it.
std::size_t end_of_part(std::string_view text) {
  const std::size_t dot = text.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? text.size() : dot + 1;
}

std::string padded(const std::string& text, int width, bool right) {
  const std::string blanks(static_cast<std::size_t>(std::max(0, width - text_width(text))), ' ');
  return right ? blanks + text : text + blanks;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

int text_width(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines;
  width = std::max(width, 1);
  while (text_width(text) > width) {
    const std::size_t most = prefix_bytes(text, width);
    const std::size_t blank = text.substr(0, most + 1).rfind(' ');
    const bool breakable = blank != std::string_view::npos && blank > 0;
    const std::size_t end = breakable ? blank : end_of_part(text.substr(0, most));
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(breakable ? end + 1 : end);
  }
  lines.emplace_back(text);
  return lines;
}

std::string wrapped_lines(std::string_view text, int width) {
  std::string lines;
  if (text.empty()) return lines;
  for (const std::string& line : wrapped(text, width)) lines += line + "\n";
  return lines;
}

void TextTable::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  lines_.push_back({std::move(cells), {}, 0});
}

void TextTable::add_note(std::string text, int column) {
  lines_.push_back({{}, std::move(text), column});
}

std::vector<int> TextTable::widths() const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int longest = text_width(columns_[i].title);
    for (const Line& line : lines_) {
      if (!line.cells.empty()) longest = std::max(longest, text_width(line.cells[i]));
    }
    widths.push_back(columns_[i].width > 0 ? std::min(longest, columns_[i].width) : longest);
  }
  return widths;
}

std::string TextTable::row_text(const std::vector<std::string>& cells,
                                const std::vector<int>& widths) const {
  std::vector<std::vector<std::string>> pieces;
  std::size_t height = 1;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    pieces.push_back(wrapped(cells[i], widths[i]));
    height = std::max(height, pieces.back().size());
  }
  std::string text;
  for (std::size_t row = 0; row < height; ++row) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string piece = row < pieces[i].size() ? pieces[i][row] : std::string();
      line += padded(piece, widths[i], columns_[i].right) + std::string(kGap, ' ');
    }
    text += without_trailing_blanks(line);
  }
  return text;
}

std::string TextTable::finish(int width) const {
  const std::vector<int> all = widths();
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string text = row_text(titles, all);
  for (const Line& line : lines_) {
    if (!line.cells.empty()) {
      text += row_text(line.cells, all);
      continue;
    }
    const int indent = std::accumulate(all.begin(), all.begin() + line.column, line.column * kGap);
    for (const std::string& piece : wrapped(line.note, width - indent)) {
      text += std::string(static_cast<std::size_t>(indent), ' ') + piece + "\n";
    }
  }
  return text;
}

}  // namespace smp::partitioning
