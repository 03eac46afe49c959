// partition/model/cost_tree.h: the tree of ModuleNodes and what each costs (paper App. C.2 and
// C.3).
#pragma once

#include <cstdint>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// One or more modules that are placed as one: they share weights, or cannot leave their parent.
struct CostNode {
  std::vector<int> modules;  ///< of the ModuleTree, ascending; the first one names the node
  int parent = -1;
  std::vector<int> children;  ///< in the order of their first execution
  double own = 0;             ///< c of these modules alone; a share of the whole model's cost
  double cost = 0;            ///< c(n): own and the whole subtree; 1 at the root
  double seconds = 0;         ///< own, of one microbatch: all calls together, and their backward
  std::int64_t weight_bytes = 0;      ///< own, each tied weight once
  std::int64_t gradient_bytes = 0;    ///< own, of weights that are trained
  double stepped_bytes = 0;           ///< of these, those a rank keeps optimizer state for
  std::int64_t buffer_bytes = 0;      ///< own
  std::int64_t activation_bytes = 0;  ///< own, of one microbatch
  int fixed = -1;                     ///< stage it is pinned to, or -1
};

/// The nodes that a model is placed by. Node 0 holds the model itself; a parent comes before its
/// children.
struct CostTree {
  std::vector<CostNode> nodes;
  std::vector<int> node_of_module;  ///< by index in ModuleTree::nodes
};

/// The two ways to add up the cost C(n) of a ModuleNode: the paper's formula has an erratum.
enum class CostReading : std::uint8_t {
  kExclusive,  ///< every module counts its own weights and time once: C(n) is a sum over the
               ///< subtree
  kLiteral,    ///< as printed: a module's cost holds its submodules', which are then added again
};

struct CostOptions {
  double memory_weight = 0.8;  ///< alpha of equation 1, 0 to 1
  CostReading reading = CostReading::kExclusive;
};

/// Groups modules into nodes and prices them. Memory and computation are each normalised by their
/// sum over the model before alpha mixes them, since bytes and seconds have no common unit.
/// @param fixed  for each module the stage it was put on by hand, or -1
CostTree make_cost_tree(const ModuleTree& tree, const simulate::Trace& trace,
                        const std::vector<int>& fixed, const CostOptions& options = {});

/// Returns the stage of every module, given the stage of every node.
std::vector<int> stages_of_modules(const CostTree& tree, const std::vector<int>& stages_of_nodes);

}  // namespace smp::partitioning
