// trial/state/state_readers.h: who reads what modules keep, found by runs that hide it.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"
#include "trial/state/hidden_members.h"

namespace smp::partitioning {

/// Returns true if a run in which `members` are hidden from `readers` differs from a run in which
/// nothing is hidden.
using Differs = std::function<bool(const std::vector<KeptMembers>& members,
                                   const std::set<ModelModule>& readers)>;

/// Finds the modules that read what other modules keep, by runs that hide it, and adds to the state
/// of `traces` (one per model) caches that others read, and readers that are not above the owner,
/// since they must be where it is written. Halves the set of modules until each reader is alone;
/// modules that 64 runs do not tell apart all count as readers.
/// @param modules  the modules that could be readers; module 0 of a model stands for the body too
/// @param trees    the trees of the models
void note_readers(const std::vector<KeptMembers>& members, const std::set<ModelModule>& modules,
                  const std::vector<const ModuleTree*>& trees, const Differs& differs,
                  std::vector<simulate::Trace>& traces);

}  // namespace smp::partitioning
