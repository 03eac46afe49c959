// api/rank/shared_warnings.cpp: gathered, merged by text, printed by the first.
#include "api/rank/shared_warnings.h"

#include <algorithm>
#include <utility>

#include "api/rank/exchange.h"
#include "base/check.h"
#include "base/log.h"

namespace smp {

SharedWarnings::~SharedWarnings() {
  for (const auto& text : noted_) base::log_text(base::LogLevel::kWarning, text);
}

void SharedWarnings::note(std::string text) { noted_.push_back(std::move(text)); }

void SharedWarnings::meet(const d2d::Communicator& ranks) {
  const auto noted = gather_values(ranks, noted_, "what ranks warn about");
  noted_.clear();
  if (ranks.rank() != 0) return;
  for (const auto& line : merged_warnings(ranks.members().ranks(), noted)) {
    base::log_text(base::LogLevel::kWarning, line);
  }
}

std::vector<std::string> merged_warnings(const std::vector<GlobalRank>& ranks,
                                         const std::vector<std::vector<std::string>>& noted) {
  struct Warning {
    const std::string* text;
    std::vector<GlobalRank> from;
  };
  std::vector<Warning> warnings;
  for (std::size_t i = 0; i < noted.size(); ++i) {
    for (const auto& text : noted[i]) {
      auto known = std::find_if(warnings.begin(), warnings.end(),
                                [&](const Warning& warning) { return *warning.text == text; });
      if (known == warnings.end()) known = warnings.insert(known, {&text, {}});
      if (known->from.empty() || known->from.back() != ranks[i]) known->from.push_back(ranks[i]);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [text, from] : warnings) {
    lines.push_back(ranks.size() == 1 ? *text : names_of(from) + ": " + *text);
  }
  return lines;
}

std::string names_of(const std::vector<GlobalRank>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    auto last = first;
    while (last + 1 < ranks.size() && ranks[last + 1].value() == ranks[last].value() + 1) ++last;
    if (first > 0) names += ", ";
    names += base::concat(ranks[first]);
    if (last > first) names += base::concat("-", ranks[last]);
    first = last + 1;
  }
  return names;
}

}  // namespace smp
