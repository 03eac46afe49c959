// report/timeline_page.cpp: data for the script, and the table below it.
#include "report/timeline_page.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "report/critical_path.h"
#include "report/step_arrows.h"
#include "report/timeline_script.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::Nanoseconds;
using schedule::StepTrace;

std::string name_of(const StepTimeline& timeline, const StepTrace& rank) {
  return concat(timeline.simulated ? "stage " : "rank ", rank.pp_rank);
}

std::string data_of(const StepTimeline& timeline, const std::vector<Arrow>& arrows,
                    const std::vector<PathPart>& path) {
  const auto origin = whole_step(timeline).start;
  Json lines = Json::array();
  for (const Arrow& arrow : arrows) {
    if (arrow.from == arrow.to) continue;
    lines.push_back({arrow.from, arrow.start - origin, arrow.to, arrow.end - origin});
  }
  Json parts = Json::array();
  for (const PathPart& part : path) {
    parts.push_back({part.rank, part.start - origin, part.end - origin,
                     part.kind == PathPart::Kind::kComputing ? 1 : 0});
  }
  Json ranks = Json::array();
  for (const StepTrace& rank : timeline.ranks) {
    Json spans = Json::array();
    for (const auto& span : rank.spans) {
      spans.push_back({span.start - origin, span.end - origin, span.cpu, span.microbatch,
                       span.module, static_cast<int>(span.phase)});
    }
    ranks.push_back({{"name", name_of(timeline, rank)},
                     {"start", rank.start - origin},
                     {"end", rank.end - origin},
                     {"spans", std::move(spans)}});
  }
  const Json data = {{"modules", timeline.module_paths},
                     {"simulated", timeline.simulated},
                     {"arrows", std::move(lines)},
                     {"path", std::move(parts)},
                     {"ranks", std::move(ranks)}};
  return json_for_script(data.dump());
}

/// "forward of encoder.block.0"
std::string work_of(const StepTimeline& timeline, const schedule::Span& span) {
  const auto module = module_name(timeline, span.module);
  return span.module < 0 ? module : concat(phase_name(span.phase), " of ", module);
}

std::string milliseconds(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", static_cast<double>(time) / 1e6);
  return text;
}

std::string with_share(Nanoseconds time, Nanoseconds whole) {
  char text[48];
  std::snprintf(text, sizeof text, "%s (%.1f %%)", milliseconds(time).c_str(),
                whole == 0 ? 0 : 100 * static_cast<double>(time) / static_cast<double>(whole));
  return text;
}

std::string title_of(const StepTimeline& timeline) {
  const auto name = timeline.simulated || timeline.ranks.empty()
                        ? std::string("Simulated step")
                        : concat("Step ", timeline.ranks.front().step);
  char bubble[16];
  std::snprintf(bubble, sizeof bubble, "%.1f %%", 100 * schedule::bubble(timeline.ranks));
  return concat(name, ": ", milliseconds(whole_step(timeline).length()), " on ",
                timeline.ranks.size(), timeline.simulated ? " stages" : " ranks", ", bubble ",
                bubble);
}

}  // namespace

std::vector<RankTimes> times_of(const StepTimeline& timeline) {
  const auto [start, end] = whole_step(timeline);
  std::vector<RankTimes> all;
  for (const StepTrace& rank : timeline.ranks) {
    auto& times = all.emplace_back();
    times.busy = rank.busy_wall();
    const bool any = !rank.spans.empty();
    times.filling = any ? rank.spans.front().start - start : end - start;
    times.draining = any ? end - rank.spans.back().end : 0;
    times.waiting = end - start - times.busy - times.filling - times.draining;
  }
  return all;
}

namespace {

/// The modules that the path spends most of its time in, and what it waits for.
void add_path_table(HtmlPage& page, const StepTimeline& timeline,
                    const std::vector<PathPart>& path) {
  constexpr std::size_t kShown = 8;
  std::map<std::string, Nanoseconds> modules;
  Nanoseconds messages = 0, other = 0, whole = 0;
  for (const PathPart& part : path) {
    const auto length = part.end - part.start;
    whole += length;
    if (part.kind == PathPart::Kind::kMessage) messages += length;
    if (part.kind == PathPart::Kind::kOther) other += length;
    if (part.kind != PathPart::Kind::kComputing) continue;
    const auto& span = timeline.ranks[part.rank].spans[part.span];
    modules[work_of(timeline, span)] += length;
  }
  std::vector<std::pair<std::string, Nanoseconds>> longest(modules.begin(), modules.end());
  std::stable_sort(longest.begin(), longest.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::vector<std::string>> rows = {{"critical path", ""}};
  for (const auto& [work, length] : longest) {
    if (rows.size() > kShown) {
      other += length;
    } else {
      rows.push_back({work, with_share(length, whole)});
    }
  }
  rows.push_back({"messages, until their receiver could go on", with_share(messages, whole)});
  rows.push_back({"all else", with_share(other, whole)});
  page.table(rows);
  page.paragraph(
      "The critical path is the chain of computations and messages that ends last: nothing else "
      "makes the step longer. It is drawn as a line below the bars, black where it computes, red "
      "where it waits for a message.");
}

}  // namespace

void add_timeline(HtmlPage& page, const StepTimeline& timeline) {
  const auto arrows = arrows_of(timeline);
  const auto path = arrows.empty() ? std::vector<PathPart>() : critical_path(timeline, arrows);
  page.style(timeline_style());
  page.script(timeline_script());
  page.raw(
      "<div class=\"timeline\"></div>\n<script>\nwindow.timelines = (window.timelines || []);\n"
      "window.timelines.push(showTimeline(document.currentScript.previousElementSibling, ");
  page.raw(data_of(timeline, arrows, path));
  page.raw("));\n</script>\n");
  page.paragraph(
      "A bar is an uninterrupted interval in which a rank ran a module, or the step body, for one "
      "microbatch. Colour tells microbatches apart; light is forward, dark is backward. Turn the "
      "wheel to zoom, drag to move, click twice for the whole step.");
  const auto length = whole_step(timeline).length();
  std::vector<std::vector<std::string>> rows = {
      {"", "busy", "before its first work", "waiting for others", "after its last work"}};
  const auto times = times_of(timeline);
  for (std::size_t i = 0; i < times.size(); ++i) {
    rows.push_back({name_of(timeline, timeline.ranks[i])});
    for (const auto part : {times[i].busy, times[i].filling, times[i].waiting, times[i].draining}) {
      rows.back().push_back(with_share(part, length));
    }
  }
  page.table(rows);
  if (!path.empty()) add_path_table(page, timeline, path);
}

std::string draw_timeline_page(const StepTimeline& timeline) {
  HtmlPage page(title_of(timeline));
  add_timeline(page, timeline);
  return std::move(page).finish();
}

}  // namespace smp::report
