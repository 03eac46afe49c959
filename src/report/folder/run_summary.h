// report/folder/run_summary.h: a run in a dozen lines: how it went, held against what its plan
// promised.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// What is known of a run.
struct RunFacts {
  std::string name;     ///< "t5"; empty: a plan alone
  std::string started;  ///< UTC
  int world_size = 0;
  std::size_t steps = 0;
  /// What metrics.jsonl holds: names in the order in which they first appear, each with its
  /// numbers.
  std::vector<std::pair<std::string, std::vector<double>>> numbers;
  std::optional<PartitionPlan> plan;
  MemoryUse memory;
  bool ended_well = true;  ///< its ranks did, each
};

/// Adds what the lines of metrics.jsonl say. What is no JSON is passed over.
void add_metrics(RunFacts& facts, const std::string& metrics);

/// For a terminal. Of a step's time, its bubble and what is counted per second the median is told,
/// without the first step, which begins cold; of each stage its memory.
std::string run_summary(const RunFacts& facts, int width = 100);

}  // namespace smp::report
