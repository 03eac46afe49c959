// report/folder/run_facts.h: what a run's files say of it in numbers. Threads: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// The facts about a run that summaries and tables of runs tell.
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

/// Reads the facts about the run, or the plan, in `folder`, as far as there are files.
/// @throws UsageError  one of its files is broken.
RunFacts read_facts(const std::string& folder);

/// Adds the numbers of the lines of metrics.jsonl to `facts`. Lines that are no JSON are passed
/// over.
void add_metrics(RunFacts& facts, const std::string& metrics);

/// Returns the median of the finite numbers of that name over all steps but the first, which begins
/// cold; if that is the only one, its number. Nothing if there is none.
std::optional<double> median_of(const RunFacts& facts, const std::string& name);

/// Returns the number of that name in the first step that has one; it may be no finite one.
std::optional<double> first_of(const RunFacts& facts, const std::string& name);

/// Returns the number of that name in the last step that has one; it may be no finite one.
std::optional<double> last_of(const RunFacts& facts, const std::string& name);

/// Returns the most bytes that a stage took; nothing if none was measured.
std::optional<std::int64_t> peak_memory(const RunFacts& facts);

/// Returns "tokens/s" for "tokens_per_second"; empty if `name` does not end in "_per_second".
std::string rate_name(const std::string& name);

}  // namespace smp::report
