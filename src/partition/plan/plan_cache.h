// partition/plan/plan_cache.h: plans of earlier starts of the same program, so that a second start
// need not trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "partition/model/module_tree.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// A folder with one plan file per key. A broken file or folder costs a warning and a new trace,
/// never the run.
class PlanCache {
 public:
  /// @param setting  "auto": `smp/plans` in the user's cache folder (XDG_CACHE_HOME, or ~/.cache);
  ///                 "off": nothing is kept; else the folder.
  explicit PlanCache(const std::string& setting);

  /// Returns the plan with that key, if there is one and it fits the model.
  std::optional<PartitionPlan> find(std::uint64_t key, const ModuleTree& tree, int pp_size) const;
  /// Returns the simulation that was stored with the plan of that key; empty if there is none.
  std::string find_simulation(std::uint64_t key) const;
  /// Stores a plan; if that fails, logs a warning.
  /// @param simulation  of a step under that plan, as text; may be empty
  void store(std::uint64_t key, const PartitionPlan& plan, const std::string& simulation) const;

  /// The folder that plans are kept in; empty if none are kept.
  const std::string& folder() const { return folder_; }

 private:
  std::string file_of(std::uint64_t key) const;
  std::string simulation_file_of(std::uint64_t key) const;
  std::string folder_;
};

/// Returns a text that changes when the running program, or a shared library that it has loaded, is
/// built anew, and when the program's arguments change: its modules may do something else then.
std::string program_identity();

}  // namespace smp::partitioning
