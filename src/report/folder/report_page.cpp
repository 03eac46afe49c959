// report/folder/report_page.cpp: its sections.
#include "report/folder/report_page.h"

#include "base/check.h"
#include "config/json.h"
#include "report/analysis/bubble_table.h"
#include "report/pictures/memory_table.h"
#include "report/pictures/timeline_page.h"

namespace smp::report {
namespace {

using base::Json;
using Rows = std::vector<std::vector<std::string>>;

/// Returns the bubbles of the report. The simulated one is that of the plan's whole step, of which
/// the drawn step may be a part.
Bubbles bubbles_of(const RunReport& report) {
  const auto* const any = report.step ? &*report.step : &*report.simulated;
  Bubbles bubbles{
      .measured = {}, .simulated = report.simulated_bubble, .ideal = ideal_bubble(*any)};
  if (report.step) bubbles.measured = schedule::bubble(report.step->ranks);
  return bubbles;
}

void add_picture(HtmlPage& page, const char* heading, const std::string& svg) {
  if (svg.empty()) return;
  page.heading(heading);
  page.picture(svg);
}

/// Adds memory as a picture, and as a table if some was measured.
void add_memory(HtmlPage& page, const RunReport& report) {
  add_picture(page, "Memory", report.memory_picture);
  if (report.measured_memory.empty()) return;
  if (report.memory_picture.empty()) page.heading("Memory");
  page.table(report.measured_memory);
  page.paragraph(kMeasuredMemory);
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
    add_bubbles(page, bubbles_of(report));
    add_timeline(page, *report.step);
  }
  add_picture(page, "Messages", report.traffic_picture);
  add_picture(page, "Partition", report.partition_picture);
  if (!report.plan_table.empty()) page.hidden("The plan as a table", report.plan_table);
  add_memory(page, report);
  if (report.simulated) {
    page.heading("The step that was simulated for the plan");
    if (!report.step) add_bubbles(page, bubbles_of(report));
    add_timeline(page, *report.simulated);
  }
  if (!report.split_arguments.empty()) {
    page.heading("Arguments of steps");
    page.table(report.split_arguments);
  }
  add_configuration(page, report.configuration);
  return std::move(page).finish();
}

}  // namespace smp::report
