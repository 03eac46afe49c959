// config/settings_text.cpp: columns as wide as their longest cell, explanations as paragraphs.
#include "config/settings_text.h"

#include <algorithm>
#include <cstddef>
#include <sstream>

#include "base/check.h"
#include "config/config_keys.h"

namespace smp::base {
namespace {

// A value with its unit; an unset one as what it means.
std::string shown(const ResolvedValue& row) {
  const ConfigKey& key = *find_config_key(row.key);
  const bool unset = row.value == "null" || row.value == "\"\"" || row.value == "[]";
  if (unset) return concat("(", key.default_text, ")");
  return key.unit.empty() ? row.value : concat(row.value, " ", key.unit);
}

/// Key, value and origin of each row, aligned.
std::vector<std::string> table_lines(const std::vector<ResolvedValue>& rows) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const ResolvedValue& row : rows) {
    key_width = std::max(key_width, row.key.size());
    value_width = std::max(value_width, shown(row).size());
  }
  std::vector<std::string> lines;
  for (const ResolvedValue& row : rows) {
    lines.push_back(concat(row.key, std::string(key_width - row.key.size() + 2, ' '), shown(row),
                           std::string(value_width - shown(row).size() + 2, ' '), row.origin,
                           "\n"));
  }
  return lines;
}

constexpr std::size_t kIndentWidth = 4;

/// Words of `text` in lines of at most `width` characters.
std::string paragraph(const std::string& text, std::size_t width) {
  std::string lines;
  std::string line(kIndentWidth, ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() > kIndentWidth && line.size() + 1 + word.size() > width) {
      lines += line + "\n";
      line = std::string(kIndentWidth, ' ');
    }
    line += (line.size() > kIndentWidth ? " " : "") + word;
  }
  return lines + line + "\n";
}

}  // namespace

std::string settings_table(const std::vector<ResolvedValue>& rows) {
  std::string text;
  for (const auto& line : table_lines(rows)) text += line;
  return text;
}

std::string explained_settings(const std::vector<ResolvedValue>& rows, int width) {
  const auto lines = table_lines(rows);
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto* const key = find_config_key(rows[i].key);
    text += lines[i] + paragraph(concat(key->meaning, "; takes ", key->expected,
                                        "; without it: ", key->default_text),
                                 static_cast<std::size_t>(width));
  }
  return text;
}

}  // namespace smp::base
