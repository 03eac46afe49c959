// partition/model/placement_rules.cpp: the three rules, with messages that name both sides.
#include "partition/model/placement_rules.h"

#include "base/check.h"

namespace smp::partitioning {
namespace {

using base::concat;

// "\"lm_head\" (stage 3, pinned by plan.json)"
std::string placed(const ModuleTree& tree, const std::vector<int>& stages,
                   const std::vector<std::string>& reasons, int node) {
  const std::string& reason = reasons[node];
  return concat(quoted_path(tree.nodes[node].path), " (stage ", stages[node],
                reason.empty() ? "" : ", ", reason, ")");
}

}  // namespace

std::vector<std::vector<int>> holders_of_parameters(const ModuleTree& tree) {
  std::vector<std::vector<int>> holders(tree.parameters.size());
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    for (const OwnParameter& own : tree.nodes[i].parameters) {
      holders.at(own.parameter).push_back(static_cast<int>(i));
    }
    for (const int viewed : tree.nodes[i].viewed) {
      holders.at(viewed).push_back(static_cast<int>(i));
    }
  }
  return holders;
}

std::vector<std::string> placement_faults(const ModuleTree& tree, const std::vector<int>& stages,
                                          int pp_size, const std::vector<std::string>& reasons) {
  std::vector<std::string> faults;
  const auto describe = [&](int node) { return placed(tree, stages, reasons, node); };
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const int node = static_cast<int>(i);
    const ModuleNode& module = tree.nodes[i];
    const int parent_stage = module.parent < 0 ? 0 : stages[module.parent];
    if (stages[i] < 0 || parent_stage < 0) continue;
    if (stages[i] >= pp_size) {
      faults.push_back(concat(describe(node), ": there are ", pp_size, " stages, numbered from 0"));
    } else if (!module.movable() && stages[i] != parent_stage) {
      faults.push_back(concat(describe(node), " cannot leave stage ", parent_stage,
                              module.parent < 0 ? "" : " of its parent", ": ", module.stays_because,
                              "; place ", module.parent < 0 ? "its parts" : "its parent",
                              " instead"));
    }
  }
  const auto holders = holders_of_parameters(tree);
  for (std::size_t p = 0; p < holders.size(); ++p) {
    int first = -1;
    for (const int holder : holders[p]) {
      if (stages[holder] < 0) continue;
      if (first < 0) first = holder;
      if (stages[first] == stages[holder]) continue;
      faults.push_back(concat("the tied weight ", tree.parameters[p].name, " belongs to ",
                              describe(first), " and to ", describe(holder),
                              ", which must be on one stage; place both there"));
      break;
    }
  }
  return faults;
}

std::string list_of_faults(const std::string& lead, const std::vector<std::string>& faults) {
  if (faults.size() == 1) return concat(lead, ": ", faults.front());
  std::string text = concat(lead, ": ", faults.size(), " problems");
  for (std::size_t i = 0; i < faults.size(); ++i) text += concat("\n  ", i + 1, ". ", faults[i]);
  return text;
}

}  // namespace smp::partitioning
