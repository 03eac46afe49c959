// partition/plan/plan_cache.h: plans of earlier starts of the same program, so that a second start
// need not trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "partition/model/module_tree.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// A folder with one plan.json a key. Whatever is wrong with it costs a warning and a trace, never
/// a run.
class PlanCache {
 public:
  /// @param setting  "auto": `smp/plans` in the user's cache folder (XDG_CACHE_HOME, or ~/.cache);
  ///                 "off": nothing is kept; else the folder.
  explicit PlanCache(const std::string& setting);

  /// The plan of that key, if it is there and fits the model.
  std::optional<PartitionPlan> find(std::uint64_t key, const ModuleTree& tree, int pp_size) const;
  /// What was stored with it; empty if there is nothing.
  std::string find_simulation(std::uint64_t key) const;
  /// @param simulation  of a step under that plan, as text; may be empty
  void store(std::uint64_t key, const PartitionPlan& plan, const std::string& simulation) const;

  /// Empty if nothing is kept.
  const std::string& folder() const { return folder_; }

 private:
  std::string file_of(std::uint64_t key) const;
  std::string simulation_file_of(std::uint64_t key) const;
  std::string folder_;
};

/// Changes when the running program, or a shared library that it has loaded, is built anew, and
/// with the program's arguments: its modules may do something else then.
std::string program_identity();

}  // namespace smp::partitioning
