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

/// The facts about a run that its summary tells.
struct RunFacts {
  std::string name;     ///< "t5"; empty: a plan alone
  std::string started;  ///< UTC
  int world_size = 0;
  std::string computing;  ///< with how many threads, on which processors; may be empty
  std::size_t steps = 0;
  /// The numbers of metrics.jsonl, by name, in the order in which the names first appear.
  std::vector<std::pair<std::string, std::vector<double>>> numbers;
  std::optional<PartitionPlan> plan;
  MemoryUse memory;
  bool ended_well = true;  ///< every rank ended in good order
};

/// Adds the numbers of the lines of metrics.jsonl to `facts`. Lines that are no JSON are passed
/// over.
void add_metrics(RunFacts& facts, const std::string& metrics);

/// Returns the summary of a run for a terminal: medians of step time, bubble and rates per second
/// over all steps but the first, which begins cold, and the memory of each stage.
std::string run_summary(const RunFacts& facts, int width = 100);

}  // namespace smp::report
