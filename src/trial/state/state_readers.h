// trial/state/state_readers.h: who reads what modules keep, found by runs that hide it.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"
#include "trial/state/hidden_members.h"

namespace smp::partitioning {

/// Whether a run in which `members` are hidden from `readers` differs from one in which nothing is.
using Differs = std::function<bool(const std::vector<KeptMembers>& members,
                                   const std::set<ModelModule>& readers)>;

/// Adds to the state of `traces`, by model, what runs show: caches that others read, and modules
/// that read what others keep without being above them, since they must be where it is written.
/// Halves the modules until readers are alone; what 64 runs do not tell apart counts as readers.
/// @param modules  that could be readers; module 0 of a model stands for the body too.
/// @param trees    of the models.
void note_readers(const std::vector<KeptMembers>& members, const std::set<ModelModule>& modules,
                  const std::vector<const ModuleTree*>& trees, const Differs& differs,
                  std::vector<simulate::Trace>& traces);

}  // namespace smp::partitioning
