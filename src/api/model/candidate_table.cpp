// api/model/candidate_table.cpp: see the header.
#include "api/model/candidate_table.h"

#include <algorithm>
#include <regex>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/text/terminal.h"
#include "partition/text/text_table.h"

namespace smp {
namespace {

/// Returns "layers.*.out" for "layers.3.out".
std::string without_numbers(const std::string& path) {
  static const std::regex number("(^|\\.)[0-9]+(?=\\.|$)");
  return std::regex_replace(path, number, "$1*");
}

struct Line {
  std::string pattern, type, fate;
  std::string first;  ///< path
  int modules = 0;
};

std::string fate_of(const ReplacementCandidate& candidate) {
  if (candidate.built) return "spread, as it was built";
  return candidate.obstacle.empty() ? "spread" : "whole: " + candidate.obstacle;
}

/// Returns the lines in the order of their first modules.
std::vector<Line> lines_of(const std::vector<ReplacementCandidate>& candidates) {
  std::vector<Line> lines;
  for (const auto& candidate : candidates) {
    Line own{without_numbers(candidate.path), candidate.type, fate_of(candidate), candidate.path};
    const auto key = [](const Line& line) { return std::tie(line.pattern, line.type, line.fate); };
    auto same = std::find_if(lines.begin(), lines.end(),
                             [&](const Line& line) { return key(line) == key(own); });
    if (same == lines.end()) same = lines.insert(same, std::move(own));
    ++same->modules;
  }
  return lines;
}

}  // namespace

std::string candidate_table(const std::vector<ReplacementCandidate>& candidates, int ranks) {
  if (candidates.empty()) return {};
  partitioning::TextTable table(
      {{"module", false, 40}, {"number", true}, {"class", false, 24}, {""}});
  for (const auto& line : lines_of(candidates)) {
    const auto& path = line.modules == 1 ? line.first : line.pattern;
    table.add_row(
        {path.empty() ? "(the model)" : path, std::to_string(line.modules), line.type, line.fate});
  }
  return base::concat("What ", ranks, " tensor-parallel ranks share:\n",
                      table.finish(base::terminal_width()));
}

}  // namespace smp
