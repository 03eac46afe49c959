// base/json.cpp: nlohmann-json behind messages that name file, line and column.
#include "base/json.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

namespace smp::base {
namespace {

// "line 4, column 3: syntax error ..." out of the library's text.
std::string shorten(const std::string& what) {
  const std::string lead = "parse error at ";
  const auto at = what.find(lead);
  return at == std::string::npos ? what : what.substr(at + lead.size());
}

// Watches the parser for a key that one object holds twice.
class DuplicateKeys {
 public:
  bool operator()(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key &&
        !open_.back().insert(parsed.get<std::string>()).second) {
      found = parsed.get<std::string>();
    }
    return true;
  }
  std::string found;

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(const std::string& text, const std::string& name) {
  DuplicateKeys duplicates;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    return duplicates(event, parsed);
  };
  Json parsed;
  try {
    parsed = Json::parse(text, watch, true, true);
  } catch (const Json::parse_error& error) {
    throw UsageError(concat(name, ": ", shorten(error.what())));
  }
  SMP_REQUIRE(duplicates.found.empty(), name, ": the key \"", duplicates.found,
              "\" is given twice; remove one");
  return parsed;
}

std::string json_position(const std::string& text, const std::string& key) {
  const std::string quoted = "\"" + key + "\"";
  for (auto at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at + 1)) {
    auto next = at + quoted.size();
    while (next < text.size() && std::isspace(static_cast<unsigned char>(text[next]))) ++next;
    if (next == text.size() || text[next] != ':') continue;
    const auto line_start = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const auto column = line_start == std::string::npos ? at + 1 : at - line_start;
    return concat(
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1, ":",
        column);
  }
  return {};
}

}  // namespace smp::base
