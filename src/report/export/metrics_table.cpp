// report/export/metrics_table.cpp: two walks over the lines: names, then values.
#include "report/export/metrics_table.h"

#include <sstream>
#include <unordered_set>
#include <vector>

#include "config/json.h"

namespace smp::report {
namespace {

using base::Json;

/// Calls `action` with each line that is a JSON object, one after the other: to keep all values of
/// a million lines would need a gigabyte.
template <class Action>
void for_each_object(const std::string& metrics, Action action) {
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    if (const auto json = base::find_json(line); json && json->is_object()) action(*json);
  }
}

std::string cell(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text)
    quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + '"';
}

std::string cell(const Json& line, const std::string& name) {
  if (!line.contains(name)) return {};
  const auto& value = line[name];
  return cell(value.is_string() ? value.get<std::string>() : base::json_text(value));
}

}  // namespace

std::string metrics_to_csv(const std::string& metrics) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for_each_object(metrics, [&](const Json& line) {
    for (const auto& [name, value] : line.get_ref<const Json::object_t&>()) {
      if (known.insert(name).second) names.push_back(name);
    }
  });
  if (names.empty()) return {};
  std::string table;
  for (const auto& name : names) table += (table.empty() ? "" : ",") + cell(name);
  table += "\r\n";
  for_each_object(metrics, [&](const Json& line) {
    for (const auto& name : names) table += (&name == &names.front() ? "" : ",") + cell(line, name);
    table += "\r\n";
  });
  return table;
}

}  // namespace smp::report
