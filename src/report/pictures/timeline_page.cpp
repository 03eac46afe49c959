// report/pictures/timeline_page.cpp: data for the script, and the tables below it.
#include "report/pictures/timeline_page.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/check.h"
#include "config/json.h"
#include "report/analysis/bubble_table.h"
#include "report/analysis/critical_path.h"
#include "report/analysis/idle_time.h"
#include "report/analysis/step_arrows.h"
#include "report/pictures/timeline_script.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::Nanoseconds;
using schedule::StepTrace;

std::string name_of(const StepTimeline& timeline, const StepTrace& rank) {
  return concat(timeline.simulated ? "stage " : "rank ", rank.pp_rank);
}

Json data_of(const std::vector<schedule::Span>& spans, Nanoseconds origin) {
  Json data = Json::array();
  for (const auto& span : spans) {
    data.push_back({span.start - origin, span.end - origin, span.cpu, span.microbatch, span.module,
                    static_cast<int>(span.phase)});
  }
  return data;
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
    ranks.push_back({{"name", name_of(timeline, rank)},
                     {"start", rank.start - origin},
                     {"end", rank.end - origin},
                     {"between", data_of(rank.between, origin)},
                     {"spans", data_of(rank.spans, origin)}});
  }
  const Json data = {{"modules", timeline.module_paths},
                     {"simulated", timeline.simulated},
                     {"arrows", std::move(lines)},
                     {"path", std::move(parts)},
                     {"ranks", std::move(ranks)}};
  return json_for_script(base::json_text(data));
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
  char bubble[16];
  std::snprintf(bubble, sizeof bubble, "%.1f %%", 100 * schedule::bubble(timeline.ranks));
  return concat(step_name(timeline), ": ", milliseconds(whole_step(timeline).length()), " on ",
                timeline.ranks.size(), timeline.simulated ? " stages" : " ranks", ", bubble ",
                bubble);
}

/// Adds the time that the rank spent between steps during `part` to `times`, by kind of work.
/// @return the sum, in nanoseconds
Nanoseconds add_time_between(const StepTrace& rank, const PathPart& part,
                             std::map<std::string, Nanoseconds>& times) {
  Nanoseconds sum = 0;
  for (const auto& span : rank.between) {
    const auto length = std::min(span.end, part.end) - std::max(span.start, part.start);
    if (length <= 0) continue;
    times[name_between_steps(span.phase)] += length;
    sum += length;
  }
  return sum;
}

/// Adds a table of the modules in which the critical path spends most of its time, and of its
/// waits.
void add_path_table(HtmlPage& page, const StepTimeline& timeline,
                    const std::vector<PathPart>& path) {
  constexpr std::size_t kShown = 8;
  std::map<std::string, Nanoseconds> modules;
  Nanoseconds messages = 0, other = 0, whole = 0;
  for (const PathPart& part : path) {
    const auto length = part.end - part.start;
    whole += length;
    if (part.kind == PathPart::Kind::kMessage) messages += length;
    if (part.kind == PathPart::Kind::kOther) {
      other += length - add_time_between(timeline.ranks[part.rank], part, modules);
    }
    if (part.kind != PathPart::Kind::kComputing) continue;
    const auto& span = timeline.ranks[part.rank].spans[part.span];
    modules[work_name(timeline, span)] += length;
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

void add_times_table(HtmlPage& page, const StepTimeline& timeline, const IdleTime& idle) {
  const auto length = idle.whole.length();
  std::vector<std::vector<std::string>> rows(1 + idle.ranks.size());
  rows[0].emplace_back();
  for (std::size_t i = 0; i < idle.ranks.size(); ++i) {
    rows[1 + i].push_back(name_of(timeline, timeline.ranks[i]));
  }
  for (const auto& column : kTimeClasses) {
    const bool any = std::any_of(idle.ranks.begin(), idle.ranks.end(),
                                 [&](const auto& own) { return own.*column.time > 0; });
    if (!any) continue;
    rows[0].emplace_back(column.name);
    for (std::size_t i = 0; i < idle.ranks.size(); ++i) {
      rows[1 + i].push_back(with_share(idle.ranks[i].*column.time, length));
    }
  }
  page.table(rows);
}

void add_time_before(HtmlPage& page, const StepTimeline& timeline, const IdleTime& idle) {
  const auto before = whole_step(timeline).start - idle.whole.start;
  if (before == 0) return;
  page.paragraph(concat(
      "Before 0 is what ranks did since the end of the step before, ", milliseconds(before),
      ": optimizer.step() of a smp::DistributedOptimizer (grey); the program itself, which loads "
      "data or logs (sand); and smp, which gets the step ready, ends the one before and waits for "
      "other ranks (dark grey). Shares are of ",
      milliseconds(idle.whole.length()), ", that time and the step."));
}

Bubbles bubbles_of(const StepTimeline& timeline, std::optional<double> simulated) {
  Bubbles bubbles{.measured = {}, .simulated = simulated, .ideal = ideal_bubble(timeline)};
  const auto own = schedule::bubble(timeline.ranks);
  if (!timeline.simulated) {
    bubbles.measured = own;
  } else if (!simulated) {
    bubbles.simulated = own;
  }
  return bubbles;
}

/// Adds a table of the work that kept ranks waiting longest.
void add_awaited_table(HtmlPage& page, const StepTimeline& timeline, const IdleTime& idle) {
  constexpr std::size_t kShown = 8;
  if (idle.awaited.empty()) return;
  const auto length = idle.whole.length();
  std::vector<std::vector<std::string>> rows = {{"waited", "for", "which did", "time"}};
  for (const auto& awaited : idle.awaited) {
    if (rows.size() > kShown) break;
    rows.push_back({name_of(timeline, timeline.ranks[awaited.rank]),
                    name_of(timeline, timeline.ranks[awaited.awaited]), awaited.work,
                    with_share(awaited.time, length)});
  }
  page.table(rows);
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
  const auto idle = idle_time(timeline, arrows);
  add_time_before(page, timeline, idle);
  add_times_table(page, timeline, idle);
  add_awaited_table(page, timeline, idle);
  if (!path.empty()) add_path_table(page, timeline, path);
}

std::string draw_timeline_page(const StepTimeline& timeline,
                               std::optional<double> simulated_bubble) {
  HtmlPage page(title_of(timeline));
  add_bubbles(page, bubbles_of(timeline, simulated_bubble));
  add_timeline(page, timeline);
  return std::move(page).finish();
}

}  // namespace smp::report
