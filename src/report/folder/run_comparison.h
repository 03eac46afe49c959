// report/folder/run_comparison.h: two runs side by side.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/analysis/step_timeline.h"
#include "report/folder/run_facts.h"
#include "report/page/svg_writer.h"

namespace smp::report {

/// One of the two.
struct ComparedRun {
  std::string name;  ///< above its column: the name of its folder
  RunFacts facts;
  std::vector<Point> losses;         ///< (step, loss)
  std::optional<StepTimeline> step;  ///< the last one that was recorded
  std::string configuration;         ///< JSON, as in run.json; may be empty
  std::string loss_unit;
};

/// Reads a run as far as there are files.
/// @throws UsageError  it is no run's folder, or one of its files is broken.
ComparedRun read_run(const std::string& folder);

/// Returns both runs as tables for a terminal: numbers, where the time of the recorded step went,
/// settings that differ, modules that live on other stages.
/// @param width  of the terminal, in columns
std::string comparison_text(const ComparedRun& first, const ComparedRun& second, int width);

/// Returns the same as one HTML file, with the losses in one picture and both steps below each
/// other.
std::string draw_comparison(const ComparedRun& first, const ComparedRun& second);

/// Compares the runs in two folders: writes the page to a file, and returns the tables.
/// @param page  the path of that file; empty: compared-with-NAME.html in the second folder
/// @return the tables, and the path of the page
/// @throws UsageError     as read_run()
/// @throws ResourceError  the file cannot be written.
std::pair<std::string, std::string> compare_runs(const std::string& first,
                                                 const std::string& second, std::string page,
                                                 int width);

}  // namespace smp::report
