// report/folder/sweep_table.h: runs of one program with different settings beside each other.
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/folder/metrics_line.h"
#include "report/folder/run_facts.h"

namespace smp::report {

/// What one run came to; what its files do not tell is empty.
struct RunResult {
  std::optional<double> step_seconds, bubble;  ///< medians, without the first step
  std::optional<double> loss;                  ///< in the last step; it may be no finite one
  std::optional<std::int64_t> memory;          ///< the most bytes that a stage took
  NamedNumbers rates;                          ///< medians: "tokens/s"
};

/// Returns what the files of a run tell of it.
RunResult result_of(const RunFacts& facts);

/// One run of a sweep.
struct SweepRun {
  std::vector<std::string> values;  ///< of each key of the sweep
  RunResult result;
  double seconds = 0;   ///< of the whole job, from its start to its end
  std::string failure;  ///< why it failed, in one line; empty: it ended in good order
  std::string folder;   ///< what the run left; empty: nothing
  std::string log;      ///< the file with what the job printed
};

struct Sweep {
  std::vector<std::string> keys;
  std::vector<SweepRun> runs;  ///< in the order of the tables
};

/// Returns a row for each run, and below those that failed why, for a terminal; last the fastest
/// one. @param width  of the terminal, in columns
std::string sweep_table(const Sweep& sweep, int width);

/// Returns the same as CSV (RFC 4180), in seconds and bytes, with a row of headings.
std::string sweep_to_csv(const Sweep& sweep);

/// Returns the same as JSON: {"runs": [{"settings": {...}, "step_seconds": 0.1, ...}, ...]}, in
/// seconds and bytes; what is not known is null.
std::string sweep_to_json(const Sweep& sweep);

}  // namespace smp::report
