// report/folder/continued_run.cpp: see the header.
#include "report/folder/continued_run.h"

#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/files.h"
#include "base/text/excerpt.h"
#include "report/export/event_file.h"
#include "report/folder/metrics_line.h"
#include "report/folder/run_folder.h"

namespace smp::report {
namespace {

/// Returns the lines of metrics.jsonl but those of steps after `last_step` and a torn last one.
std::string metrics_until(const std::string& metrics, std::int64_t last_step,
                          const std::string& name) {
  std::string kept;
  std::istringstream lines(metrics);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (lines.eof()) break;  // it has no end: torn
    const auto numbers = numbers_of(line);
    SMP_REQUIRE(numbers, name, ": line ", number, " is not JSON: ", base::excerpt(line));
    const auto step = number_named(*numbers, "step");
    if (!step || *step <= static_cast<double>(last_step)) kept += line + '\n';
  }
  return kept;
}

}  // namespace

std::string continue_run(const std::string& folder, std::int64_t last_step) {
  const auto path_of = [&](const std::string& file) { return base::concat(folder, "/", file); };
  const auto description = describe_run(folder);
  SMP_REQUIRE(!description.name.empty(), "RunLogOptions::continues is ", base::excerpt(folder),
              ", which is no run's folder: it holds no ", kRunFile,
              "; leave it empty for a new folder");
  const auto metrics = path_of(kMetricsFile), events = path_of(kEventFile);
  std::optional<std::string> lines, records;
  if (base::file_exists(metrics)) {
    lines = metrics_until(base::read_file(metrics), last_step, metrics);
  }
  if (base::file_exists(events)) {
    records = events_until(base::read_file(events), last_step, events);
  }
  if (lines) base::write_file(metrics, *lines);
  if (records && records->empty()) {
    base::remove_file(events);
  } else if (records) {
    base::write_file(events, *records);
  }
  for (int rank = 0; base::file_exists(path_of(ring_file(rank))); ++rank) {
    base::remove_file(path_of(ring_file(rank)));
  }
  return description.started;
}

}  // namespace smp::report
