// partition/plan/plan_json.cpp: rows and the summary of a plan, to JSON and back.
#include "partition/plan/plan_json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "partition/model/module_tree.h"

namespace smp::partitioning {
namespace {

using base::concat;
using base::Json;
using base::json_member;
using Outcome = PlanSummary::Outcome;

// What JSON has no number for, as the bubble of a step that takes no time, is written as 0. The
// table of a plan that was read rounds a second time: of fewer digits that came to another number
// now and then (11.00 s, 11.01 s).
double rounded(double value) {
  if (!std::isfinite(value)) return 0;
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return std::strtod(text, nullptr);
}

double rounded_share(double share) { return std::round(share * 1e6) / 1e6; }

/// Reads a number of bytes or elements, 0 to 2^44, so that sums over all modules of a plan do not
/// overflow. @throws UsageError
std::int64_t amount_from_json(const Json& object, const char* key, const std::string& name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 44;
  const auto amount = json_member<std::int64_t>(object, key, name);
  SMP_REQUIRE(amount >= 0 && amount <= kMost, name, ": \"", key, "\" is ", amount,
              ", expected at least 0 and at most ", kMost);
  return amount;
}

/// Reads a memory limit in bytes; 0 if there is none. As limits are not summed, any number that
/// configuration takes is allowed. @throws UsageError
std::int64_t limit_or_none(const Json& object, const char* key, const std::string& name) {
  if (!object.contains(key)) return 0;
  const auto limit = json_member<std::int64_t>(object, key, name);
  SMP_REQUIRE(limit >= 0, name, ": \"", key, "\" is ", limit, ", expected at least 0");
  return limit;
}

std::int64_t amount_or(const Json& object, const char* key, const std::string& name,
                       std::int64_t otherwise) {
  return object.contains(key) ? amount_from_json(object, key, name) : otherwise;
}

template <class T>
T member_or(const Json& object, const char* key, const std::string& name, T otherwise) {
  return object.contains(key) ? json_member<T>(object, key, name) : otherwise;
}

Json outcome_to_json(const Outcome& outcome) {
  Json json = {{"strategy", outcome.strategy},
               {"step_seconds", rounded(outcome.step_seconds)},
               {"bubble", rounded(outcome.bubble)},
               {"bottleneck_to_bound", rounded(outcome.bottleneck_to_bound)}};
  if (!outcome.fits) json["fits"] = false;
  return json;
}

Outcome outcome_from_json(const Json& json, const std::string& name) {
  return {
      json_member<std::string>(json, "strategy", name),
      json_member<double>(json, "step_seconds", name), json_member<double>(json, "bubble", name),
      json_member<double>(json, "bottleneck_to_bound", name), member_or(json, "fits", name, true)};
}

Json link_to_json(const PlanSummary::Link& link) {
  return {{"seconds", rounded(link.seconds)}, {"bytes_per_second", rounded(link.bytes_per_second)}};
}

PlanSummary::Link link_or_none(const Json& json, const char* key, const std::string& name) {
  if (!json.contains(key)) return {};
  const auto link = json_member<Json>(json, key, name);
  return {json_member<double>(link, "seconds", name),
          json_member<double>(link, "bytes_per_second", name)};
}

Json stage_to_json(const StageSummary& stage) {
  Json json = {{"cost", rounded_share(stage.cost)},
               {"weights", stage.weights},
               {"gradients", stage.gradients},
               {"optimizer", stage.optimizer},
               {"buffers", stage.buffers},
               {"activations", stage.activations},
               {"most_activations", stage.most_activations},
               {"bytes_in", stage.bytes_in},
               {"bytes_out", stage.bytes_out}};
  if (stage.memory_limit > 0) json["memory_limit"] = stage.memory_limit;
  json["why"] = stage.why;
  if (!stage.device.empty()) json["device"] = stage.device;
  if (stage.node > 0) json["node"] = stage.node;
  return json;
}

StageSummary stage_from_json(const Json& json, const std::string& name) {
  StageSummary stage;
  stage.cost = json_member<double>(json, "cost", name);
  stage.weights = amount_from_json(json, "weights", name);
  stage.gradients = amount_from_json(json, "gradients", name);
  stage.optimizer = amount_from_json(json, "optimizer", name);
  stage.buffers = amount_from_json(json, "buffers", name);
  stage.activations = amount_from_json(json, "activations", name);
  stage.most_activations = amount_or(json, "most_activations", name, stage.activations);
  stage.memory_limit = limit_or_none(json, "memory_limit", name);
  stage.bytes_in = amount_from_json(json, "bytes_in", name);
  stage.bytes_out = amount_from_json(json, "bytes_out", name);
  stage.why = json_member<std::string>(json, "why", name);
  stage.device = member_or(json, "device", name, std::string());
  stage.node = member_or(json, "node", name, 0);
  return stage;
}

}  // namespace

Json row_to_json(const PartitionPlan::Row& row) {
  Json json = {{"pp_rank", row.pp_rank}};
  if (!row.parameters.empty()) {
    json["parameters"] = row.parameters;
    json["elements"] = row.elements;
    json["bytes"] = row.bytes;
  }
  if (const double cost = rounded_share(row.cost); cost > 0) json["cost"] = cost;
  if (!row.why.empty()) json["why"] = row.why;
  if (!row.state.empty()) json["state"] = row.state;
  if (!row.state_what.empty()) json["state_what"] = row.state_what;
  if (row.recomputed) json["recomputed"] = true;
  if (row.keeps_products) json["keeps_products"] = true;
  return json.size() == 1 ? Json(row.pp_rank) : json;
}

PartitionPlan::Row row_from_json(const std::string& path, const Json& value,
                                 const std::string& name) {
  PartitionPlan::Row row;
  row.path = path;
  const std::string place = concat(name, ": module ", quoted_path(path));
  if (value.is_number()) {
    row.pp_rank = base::required_json<int>(value, concat(place, ": the stage"));
    return row;
  }
  row.pp_rank = json_member<int>(value, "pp_rank", place);
  row.cost = member_or(value, "cost", place, 0.0);
  row.why = member_or(value, "why", place, std::string());
  row.state = member_or(value, "state", place, std::string());
  row.state_what = member_or(value, "state_what", place, std::string());
  row.recomputed = member_or(value, "recomputed", place, false);
  row.keeps_products = member_or(value, "keeps_products", place, false);
  SMP_REQUIRE(row.recomputed || !row.keeps_products, place,
              ": \"keeps_products\" is true, but \"recomputed\" is not");
  SMP_REQUIRE(row.state.empty() || row.state == "shared" || row.state == "ordered" ||
                  row.state == "cache" || row.state == "values",
              place, ": \"state\" is \"", base::excerpt(row.state),
              "\", expected \"shared\", \"ordered\", \"cache\" or \"values\"");
  if (!value.contains("parameters")) return row;
  row.parameters = json_member<std::string>(value, "parameters", place);
  row.elements = amount_from_json(value, "elements", place);
  row.bytes = amount_from_json(value, "bytes", place);
  return row;
}

Json summary_to_json(const PlanSummary& summary) {
  Json json = {{"costs", summary.costs},
               {"pipeline", summary.pipeline},
               {"microbatches", summary.microbatches},
               {"cores", summary.cores},
               {"chosen", outcome_to_json(summary.chosen)},
               {"others", Json::array()}};
  if (summary.active_microbatches > 0) json["active_microbatches"] = summary.active_microbatches;
  if (summary.step_bound > 0) json["step_bound"] = rounded(summary.step_bound);
  if (summary.within_node.bytes_per_second > 0) {
    json["within_node"] = link_to_json(summary.within_node);
  }
  if (summary.across_nodes.bytes_per_second > 0) {
    json["across_nodes"] = link_to_json(summary.across_nodes);
  }
  json["stages"] = Json::array();
  for (const Outcome& other : summary.others) json["others"].push_back(outcome_to_json(other));
  for (const StageSummary& stage : summary.stages) json["stages"].push_back(stage_to_json(stage));
  return json;
}

PlanSummary summary_from_json(const Json& json, const std::string& name) {
  const std::string place = concat(name, ": \"summary\"");
  PlanSummary summary;
  summary.costs = json_member<std::string>(json, "costs", place);
  summary.pipeline = json_member<std::string>(json, "pipeline", place);
  summary.microbatches = json_member<int>(json, "microbatches", place);
  summary.active_microbatches = member_or(json, "active_microbatches", place, 0);
  summary.cores = member_or(json, "cores", place, 0.0);
  summary.step_bound = member_or(json, "step_bound", place, 0.0);
  summary.within_node = link_or_none(json, "within_node", place);
  summary.across_nodes = link_or_none(json, "across_nodes", place);
  summary.chosen = outcome_from_json(json_member<Json>(json, "chosen", place), place);
  for (const Json& other : json_member<std::vector<Json>>(json, "others", place)) {
    summary.others.push_back(outcome_from_json(other, place));
  }
  for (const Json& stage : json_member<std::vector<Json>>(json, "stages", place)) {
    summary.stages.push_back(stage_from_json(stage, place));
  }
  return summary;
}

}  // namespace smp::partitioning
