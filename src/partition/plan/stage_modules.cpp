// partition/plan/stage_modules.cpp: finds the outermost whole modules of a stage.
#include "partition/plan/stage_modules.h"

#include <map>

#include "partition/text/module_names.h"

namespace smp::partitioning {
namespace {

// What the rows below and including a module have in common.
struct Subtree {
  bool whole = true;        // all on the stage of the module itself
  bool parameters = false;  // any, tied ones included
};

std::map<std::string, Subtree> subtrees(const PartitionPlan& plan) {
  std::map<std::string, Subtree> found;
  std::map<std::string, int> stages;
  for (const PartitionPlan::Row& row : plan.rows()) stages[row.path] = row.pp_rank;
  for (auto row = plan.rows().rbegin(); row != plan.rows().rend(); ++row) {
    Subtree& here = found[row->path];
    here.parameters |= !row->parameters.empty();
    if (row->path.empty()) continue;
    Subtree& parent = found[parent_path(row->path)];
    parent.whole &= here.whole && stages[parent_path(row->path)] == row->pp_rank;
    parent.parameters |= here.parameters;
  }
  return found;
}

}  // namespace

std::vector<std::vector<std::string>> modules_of_stages(const PartitionPlan& plan) {
  const auto trees = subtrees(plan);
  std::vector<std::vector<std::string>> with_parameters(plan.pp_size());
  std::vector<std::vector<std::string>> all(plan.pp_size());
  for (const PartitionPlan::Row& row : plan.rows()) {
    const Subtree& here = trees.at(row.path);
    const bool own = !here.whole && !row.parameters.empty();
    const bool inside = !row.path.empty() && trees.at(parent_path(row.path)).whole;
    if (inside || !(here.whole || own)) continue;
    const std::string path = row.path.empty() ? "the model" : row.path;
    const std::string name = own ? path + " (its own parameters)" : path;
    all[row.pp_rank].push_back(name);
    if (here.parameters) with_parameters[row.pp_rank].push_back(name);
  }
  for (int stage = 0; stage < plan.pp_size(); ++stage) {
    const auto& shown = with_parameters[stage].empty() ? all[stage] : with_parameters[stage];
    all[stage] = short_names(shown);
  }
  return all;
}

}  // namespace smp::partitioning
