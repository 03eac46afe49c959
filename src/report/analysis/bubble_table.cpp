// report/analysis/bubble_table.cpp: up to three rows.
#include "report/analysis/bubble_table.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace smp::report {
namespace {

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

int num_microbatches(const StepTimeline& timeline) {
  int number = 0;
  for (const auto& rank : timeline.ranks) {
    for (const auto& span : rank.spans) number = std::max(number, span.microbatch + 1);
  }
  return number;
}

}  // namespace

std::optional<double> ideal_bubble(const StepTimeline& timeline) {
  if (timeline.ranks.empty()) return std::nullopt;
  if (timeline.ranks.size() == 1) return 0.0;
  const auto others = static_cast<double>(timeline.ranks.size() - 1);
  return others / (num_microbatches(timeline) + others);
}

void add_bubbles(HtmlPage& page, const Bubbles& bubbles) {
  if (!bubbles.ideal) return;
  std::vector<std::vector<std::string>> rows = {{"bubble", ""}};
  if (bubbles.measured) rows.push_back({"measured", percent(*bubbles.measured)});
  if (bubbles.simulated) rows.push_back({"simulated", percent(*bubbles.simulated)});
  rows.push_back({"of equal stages without any delay", percent(*bubbles.ideal)});
  page.table(rows);
}

}  // namespace smp::report
