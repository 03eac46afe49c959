// partition/plan/run_record.h: how a run trained, beside its plan in one file: settings, schedule
// and routes, so that the file alone makes another run like it (docs/plans.md).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::partitioning {

/// A value; threads: any.
struct RunRecord {
  /// Tensors from one rank to some others.
  struct Route {
    int from = 0;
    std::string to;    ///< "1-3, 6"
    std::string over;  ///< by size: "up to 4096 bytes host_shm, above mpi"
    bool operator==(const Route&) const = default;
  };
  std::string settings = "{}";  ///< a JSON object (config/config_sources.h)
  std::string lists;            ///< text of the schedule if its key is file:PATH, else empty
  int ranks = 0;                ///< of the job
  std::vector<Route> routes;    ///< empty: not known, as of a job that was only planned

  /// Returns how tensors went from a rank to each of the others. @throws UsageError  "to" is none
  [[nodiscard]] std::map<int, std::string> routes_from(int rank) const;
  bool operator==(const RunRecord&) const = default;
};

/// Returns "1-3, 6" for {1, 2, 3, 6}. @param ranks  ascending
[[nodiscard]] std::string ranks_text(const std::vector<int>& ranks);

/// Returns the text of a file that holds both. PartitionPlan::read() reads its plan.
[[nodiscard]] std::string plan_text(const PartitionPlan& plan, const RunRecord& run);
/// Returns the record in the text of a plan file; nothing if there is none: older files, plans that
/// were written by hand, other files.
/// @param name  of the file, leads the messages
/// @throws UsageError  it is broken
[[nodiscard]] std::optional<RunRecord> find_run_record(const std::string& text,
                                                       const std::string& name);

}  // namespace smp::partitioning
