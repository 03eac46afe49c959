// report/folder/find_runs.cpp: by what a folder holds, and when that was written.
#include "report/folder/find_runs.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "report/folder/run_folder.h"

namespace smp::report {
namespace {

namespace fs = std::filesystem;

/// Returns the newest run beside or below `path`, or where runs are put by default.
std::string run_near(const std::string& path) {
  for (const auto& parent : {fs::path(path), fs::path(path).parent_path(), fs::path("runs")}) {
    auto run = newest_run(parent.string());
    if (!run.empty()) return run;
  }
  return {};
}

}  // namespace

std::string newest_run(const std::string& parent) {
  std::pair<fs::file_time_type, std::string> newest{fs::file_time_type::min(), ""};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(parent, none)) {
    for (const char* const file : {kRunFile, kPlanFile}) {
      const auto time = fs::last_write_time(entry.path() / file, none);
      if (!none) newest = std::max(newest, {time, entry.path().string()});
    }
  }
  return newest.second;
}

void refuse_run(const std::string& path, const std::string& lacks) {
  const auto what =
      base::file_exists(path) ? base::concat(path, " ", lacks) : base::concat("there is no ", path);
  const auto run = run_near(path);
  throw UsageError(base::concat(
      what, run.empty() ? "; a program that makes an smp::RunLog (smp/run_log.h) leaves a folder "
                          "in runs/, ./smp demo for one"
                        : base::concat("; the newest run here is ", run)));
}

}  // namespace smp::report
