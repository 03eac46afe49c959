// partition/units.h: cuts a model into the pieces that are placed as a whole, coarse to fine.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/module_tree.h"

namespace smp::partition {

/// Where a module goes: to a rank that is already known, or with a unit.
struct Anchor {
  int rank = -1;  ///< -1 if it goes with `unit`
  int unit = -1;
};

/// Subtrees that are placed as a whole, in the order of registration. Modules above them run on the
/// rank of their parent.
struct Units {
  std::vector<int> roots;           ///< top module of each unit
  std::vector<std::int64_t> bytes;  ///< parameter bytes of each, without those of fixed modules
  std::vector<Anchor> anchors;      ///< of every module
};

/// Opens the model from the top: a unit is refined into its movable children while it holds more
/// than three quarters of an even share, or while fewer units with parameters exist than stages.
/// @param fixed  for each module the rank it was put on by hand, or -1; these are left out
Units find_units(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size);

}  // namespace smp::partition
