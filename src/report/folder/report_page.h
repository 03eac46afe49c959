// report/folder/report_page.h: a whole run as one HTML page. Threads: any.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// The contents of the page of a run; empty parts are left out.
struct RunReport {
  std::string title;
  std::string facts;  ///< when, on how many ranks, by which versions
  /// The metrics of the last step that was logged, as (name, text).
  std::vector<std::pair<std::string, std::string>> metrics;
  std::string loss_picture;  ///< SVG, as the other pictures
  std::optional<StepTimeline> step, simulated;
  /// The bubble of the plan's whole step, of which `simulated` may be a part.
  std::optional<double> simulated_bubble;
  std::string traffic_picture, partition_picture, memory_picture;
  /// The rows of memory_rows(), if something was measured.
  std::vector<std::vector<std::string>> measured_memory;
  /// The rows of split_rows(), if steps split arguments.
  std::vector<std::vector<std::string>> split_arguments;
  std::string plan_table;
  std::string configuration;  ///< JSON: of each key an object with "value" and "origin"
};

/// Returns the run as one HTML file.
/// @throws UsageError  the configuration is broken.
std::string draw_report(const RunReport& report);

}  // namespace smp::report
