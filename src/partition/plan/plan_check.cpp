// partition/plan/plan_check.cpp: describes a model in the rows of a plan, and compares the two.
#include "partition/plan/plan_check.h"

#include <algorithm>

#include "base/check.h"
#include "base/text/edit_distance.h"
#include "config/json.h"
#include "partition/model/placement_rules.h"

namespace smp::partitioning {
namespace {

using base::concat;
using base::Json;

std::string parameters_text(const ModuleTree& tree, const ModuleNode& node,
                            const std::vector<bool>& seen) {
  std::string text;
  for (const OwnParameter& own : node.parameters) {
    const TreeParameter& parameter = tree.parameters[own.parameter];
    text += concat(text.empty() ? "" : ", ", own.name, seen[own.parameter] ? " = " : " ",
                   seen[own.parameter] ? parameter.name : parameter.shape);
  }
  return text;
}

// Rows that say what the model is; its modules are all on stage 0 yet.
std::vector<PartitionPlan::Row> describe(const ModuleTree& tree) {
  std::vector<bool> seen(tree.parameters.size(), false);
  std::vector<PartitionPlan::Row> rows;
  for (const ModuleNode& node : tree.nodes) {
    PartitionPlan::Row row;
    row.path = node.path;
    row.parameters = parameters_text(tree, node, seen);
    for (const OwnParameter& own : node.parameters) {
      if (seen[own.parameter]) continue;
      seen[own.parameter] = true;
      row.elements += tree.parameters[own.parameter].elements;
      row.bytes += tree.parameters[own.parameter].bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The first module in which the plan's model and this one differ, or empty.
std::string first_difference(const std::vector<PartitionPlan::Row>& plan,
                             const std::vector<PartitionPlan::Row>& model) {
  std::vector<std::string> paths;
  for (const auto& row : model) paths.push_back(row.path);
  for (std::size_t i = 0; i < std::max(plan.size(), model.size()); ++i) {
    if (i == plan.size()) return concat("the plan lacks module ", quoted_path(model[i].path));
    if (i == model.size() || plan[i].path != model[i].path) {
      const bool known = std::find(paths.begin(), paths.end(), plan[i].path) != paths.end();
      if (!known || i == model.size()) {
        return concat("the model has no module ", quoted_path(plan[i].path),
                      base::did_you_mean(plan[i].path, paths));
      }
      return concat("where the model has ", quoted_path(model[i].path), ", the plan has ",
                    quoted_path(plan[i].path));
    }
    if (plan[i].parameters != model[i].parameters) {
      return concat("parameters of ", quoted_path(plan[i].path), " are \"",
                    base::excerpt(plan[i].parameters), "\" in the plan and \"",
                    base::excerpt(model[i].parameters), "\" in the model");
    }
  }
  return {};
}

std::vector<Pin> pins_of(const Json& json, const std::string& name) {
  SMP_REQUIRE(json.is_object(), name,
              ": expected a plan, or an object that maps module paths to stages");
  std::vector<Pin> pins;
  for (const auto& [path, stage] : json.items()) {
    const auto pp_rank = base::json_as<int>(stage);
    SMP_REQUIRE(pp_rank, name, ": the stage of \"", base::excerpt(path),
                "\" must be an integer, found ", base::excerpt(base::json_text(stage)));
    pins.push_back({path, *pp_rank, name});
  }
  return pins;
}

}  // namespace

PartitionPlan plan_of(const ModuleTree& tree, const std::vector<int>& stages, int pp_size) {
  SMP_ASSERT(stages.size() == tree.nodes.size());
  std::vector<PartitionPlan::Row> rows = describe(tree);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].pp_rank = stages[i];
  return PartitionPlan(pp_size, std::move(rows));
}

void check_plan(const PartitionPlan& plan, const ModuleTree& tree, int pp_size,
                const std::string& name) {
  SMP_REQUIRE(plan.pp_size() == pp_size, name, ": made for ", plan.pp_size(),
              " stages, but this run has ", pp_size,
              "; start as many ranks as make that many stages (stages x tensor_parallel_degree x "
              "replicas), or leave plan_file out to make a new plan");
  const std::string difference = first_difference(plan.rows(), describe(tree));
  SMP_REQUIRE(difference.empty(), name, ": made for another model: ", difference,
              "; leave plan_file out to make a new plan");
  std::vector<int> stages;
  for (const auto& row : plan.rows()) stages.push_back(row.pp_rank);
  const std::vector<std::string> reasons(stages.size());
  const auto faults = placement_faults(tree, stages, pp_size, reasons);
  if (!faults.empty()) throw UsageError(list_of_faults(name, faults));
}

std::vector<Pin> pins_of(const PartitionPlan& plan, const std::string& name) {
  std::vector<Pin> pins;
  for (const auto& row : plan.rows()) pins.push_back({row.path, row.pp_rank, name});
  return pins;
}

PlanFile plan_file_of(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  PlanFile file;
  // A module may have that name: then it is a stage.
  if (json.is_object() && json.contains("format") && json["format"].is_string()) {
    file.plan = PartitionPlan::from_json(text, name);
  } else {
    file.pins = pins_of(json, name);
  }
  return file;
}

}  // namespace smp::partitioning
