// report/report_page.cpp: its sections.
#include "report/report_page.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/json.h"
#include "report/timeline_page.h"

namespace smp::report {
namespace {

using base::Json;
using Rows = std::vector<std::vector<std::string>>;

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

/// Of p equal stages and m microbatches: (p - 1) / (m + p - 1).
double ideal_bubble(const StepTimeline& timeline) {
  const auto stages = static_cast<double>(timeline.ranks.size());
  return (stages - 1) / (num_microbatches(timeline) + stages - 1);
}

void add_bubbles(HtmlPage& page, const RunReport& report) {
  const auto* const any = report.step        ? &*report.step
                          : report.simulated ? &*report.simulated
                                             : nullptr;
  if (any == nullptr || any->ranks.empty()) return;
  Rows rows = {{"bubble", ""}};
  if (report.step) rows.push_back({"measured", percent(schedule::bubble(report.step->ranks))});
  if (report.simulated) {
    const auto drawn = schedule::bubble(report.simulated->ranks);
    rows.push_back({"simulated", percent(report.promised_bubble.value_or(drawn))});
  }
  rows.push_back({"of equal stages without any delay", percent(ideal_bubble(*any))});
  page.table(rows);
}

void add_picture(HtmlPage& page, const char* heading, const std::string& svg) {
  if (svg.empty()) return;
  page.heading(heading);
  page.picture(svg);
}

void add_configuration(HtmlPage& page, const std::string& configuration) {
  if (configuration.empty()) return;
  const Json json = base::parse_json(configuration, "configuration");
  SMP_REQUIRE(json.is_object(), "the configuration of the run is no JSON object");
  Rows rows = {{"key", "value", "from"}};
  for (const auto& [key, entry] : json.items()) {
    if (!entry.is_object() || !entry.contains("value")) continue;
    const auto& value = entry["value"];
    rows.push_back({key, value.is_string() ? value.get<std::string>() : base::json_text(value),
                    entry.contains("origin") && entry["origin"].is_string()
                        ? entry["origin"].get<std::string>()
                        : ""});
  }
  page.heading("Configuration");
  page.table(rows);
}

}  // namespace

std::string draw_report(const RunReport& report) {
  HtmlPage page(report.title);
  if (!report.facts.empty()) page.paragraph(report.facts);
  if (!report.metrics.empty()) {
    Rows rows = {{"last logged step", ""}};
    for (const auto& [name, value] : report.metrics) rows.push_back({name, value});
    page.table(rows);
  }
  add_picture(page, "Loss", report.loss_picture);
  if (report.step) {
    page.heading("One step");
    add_bubbles(page, report);
    add_timeline(page, *report.step);
  }
  add_picture(page, "Messages", report.traffic_picture);
  add_picture(page, "Partition", report.partition_picture);
  if (!report.plan_table.empty()) page.hidden("The plan as a table", report.plan_table);
  add_picture(page, "Memory", report.memory_picture);
  if (report.simulated) {
    page.heading("The step that was simulated for the plan");
    if (!report.step) add_bubbles(page, report);
    add_timeline(page, *report.simulated);
  }
  add_configuration(page, report.configuration);
  return std::move(page).finish();
}

}  // namespace smp::report
