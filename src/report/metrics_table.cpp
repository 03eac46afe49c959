// report/metrics_table.cpp: two walks over the lines: names, then values.
#include "report/metrics_table.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/json.h"

namespace smp::report {
namespace {

using base::Json;

std::vector<Json> objects_in(const std::string& metrics) {
  std::vector<Json> objects;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    auto json = Json::parse(line, nullptr, false);
    if (json.is_object()) objects.push_back(std::move(json));
  }
  return objects;
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
  return cell(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::string metrics_to_csv(const std::string& metrics) {
  const auto lines = objects_in(metrics);
  std::vector<std::string> names;
  for (const auto& line : lines) {
    for (const auto& item : line.items()) {
      if (std::find(names.begin(), names.end(), item.key()) == names.end()) {
        names.push_back(item.key());
      }
    }
  }
  if (names.empty()) return {};
  std::string table;
  for (const auto& name : names) table += (table.empty() ? "" : ",") + cell(name);
  table += "\r\n";
  for (const auto& line : lines) {
    for (const auto& name : names) table += (&name == &names.front() ? "" : ",") + cell(line, name);
    table += "\r\n";
  }
  return table;
}

}  // namespace smp::report
