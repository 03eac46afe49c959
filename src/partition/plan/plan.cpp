// partition/plan/plan.cpp: PartitionPlan and its file: a summary, then one line per module.
#include "smp/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/text/edit_distance.h"
#include "config/config_keys.h"
#include "config/json.h"
#include "partition/model/module_tree.h"
#include "partition/plan/plan_json.h"
#include "partition/plan/plan_table.h"
#include "partition/text/module_names.h"

namespace smp {
namespace {

using base::concat;
using base::Json;
using base::json_text;
using partitioning::parent_path;
using partitioning::quoted_path;

constexpr const char* kFormat = "smp-plan";
// A file that says how a run trained is of the second: builds that know the first only would take
// the placement and leave out the rest.
constexpr int kVersion = 1;
constexpr int kVersionWithRun = 2;

// Deeper trees than this allows would need more stack than there is to be drawn.
constexpr std::size_t kLongestPath = 4096;

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string hash_text(const std::string& hashed) {
  return hash_text(XXH3_64bits(hashed.data(), hashed.size()));
}

/// Refuses the row of a module that does not come after its parent's, or comes twice.
/// @param before  the paths of the rows above
void require_place_in_tree(const std::string& path, const std::unordered_set<std::string>& before,
                           const std::string& name) {
  SMP_REQUIRE(path.size() <= kLongestPath, name, ": the path of module ", quoted_path(path),
              " has ", path.size(), " bytes, at most ", kLongestPath, " are read");
  SMP_REQUIRE(before.empty() == path.empty(), name, ": ", quoted_path(path), " is in the place of ",
              before.empty() ? "the model itself" : "a module",
              "; the first entry of \"modules\" is the model itself, \"\"");
  if (path.empty()) return;
  const auto parent = parent_path(path);
  SMP_REQUIRE(before.contains(parent), name, ": module ", quoted_path(path), " comes before ",
              quoted_path(parent), ", which it is a part of; each module follows its parent");
}

// Tells whether modules were moved by hand since the summary was written.
std::string placement_hash(const std::vector<PartitionPlan::Row>& rows) {
  std::string text;
  for (const PartitionPlan::Row& row : rows) text += concat(row.path, ": ", row.pp_rank, "\n");
  return hash_text(text);
}

// "a": value on one line; of an array, a line for each element.
std::string member_lines(const std::string& key, const Json& value) {
  std::string text = concat(",\n    \"", key, "\": ");
  if (!value.is_array() || value.empty()) return text + json_text(value);
  for (const Json& element : value) {
    text += concat(&element == &value.front() ? "[\n      " : ",\n      ", json_text(element));
  }
  return text + "\n    ]";
}

std::string summary_text(const PartitionPlan& plan) {
  if (!plan.summary()) return {};
  std::string text =
      concat("  \"summary\": {\n    \"placement\": \"", placement_hash(plan.rows()), "\"");
  const Json json = partitioning::summary_to_json(*plan.summary());
  for (const auto& [key, value] : json.items()) text += member_lines(key, value);
  return text + "\n  },\n";
}

std::vector<PartitionPlan::Row> rows_from_json(const Json& modules, int pp_size,
                                               const std::string& name) {
  SMP_REQUIRE(modules.is_object(), name, ": \"modules\" must map module paths to stages");
  std::vector<PartitionPlan::Row> rows;
  std::unordered_set<std::string> paths;
  for (const auto& [path, value] : modules.items()) {
    rows.push_back(partitioning::row_from_json(path, value, name));
    const int stage = rows.back().pp_rank;
    SMP_REQUIRE(stage >= 0 && stage < pp_size, name, ": module ", quoted_path(path),
                " is on stage ", stage, ", but there are ", pp_size, " stages, numbered from 0");
    require_place_in_tree(path, paths, name);
    paths.insert(path);
  }
  return rows;
}

// Nothing if modules were moved by hand: what the summary says does not hold any more.
std::optional<PlanSummary> summary_of(const Json& json, const std::vector<PartitionPlan::Row>& rows,
                                      int pp_size, const std::string& name) {
  if (!json.contains("summary")) return std::nullopt;
  const Json& member = json["summary"];
  if (base::json_member<std::string>(member, "placement", name) != placement_hash(rows)) {
    return std::nullopt;
  }
  PlanSummary summary = partitioning::summary_from_json(member, name);
  SMP_REQUIRE(static_cast<int>(summary.stages.size()) == pp_size, name, ": the summary has ",
              summary.stages.size(), " stages, but \"pp_size\" is ", pp_size);
  return summary;
}

}  // namespace

PartitionPlan::PartitionPlan(int pp_size, std::vector<Row> rows, std::optional<PlanSummary> summary)
    : pp_size_(pp_size), rows_(std::move(rows)), summary_(std::move(summary)) {}

std::uint64_t PartitionPlan::model_hash() const {
  std::string text;
  for (const Row& row : rows_) text += concat(row.path, ": ", row.parameters, "\n");
  return XXH3_64bits(text.data(), text.size());
}

int PartitionPlan::stage_of(std::string_view path) const {
  std::vector<std::string> paths;
  for (const Row& row : rows_) {
    if (row.path == path) return row.pp_rank;
  }
  for (const Row& row : rows_) paths.push_back(row.path);
  throw UsageError(concat("the plan has no module \"", base::excerpt(path), "\"",
                          base::did_you_mean(path, paths)));
}

std::string partitioning::plan_text(const PartitionPlan& plan, const std::string& run) {
  const int version = run.empty() ? kVersion : kVersionWithRun;
  std::string text =
      concat("{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", version,
             ",\n  \"pp_size\": ", plan.pp_size(), ",\n  \"model\": \"",
             hash_text(plan.model_hash()), "\",\n", run, summary_text(plan), "  \"modules\": {");
  for (const PartitionPlan::Row& row : plan.rows()) {
    text += concat(&row == &plan.rows().front() ? "\n" : ",\n", "    ", json_text(row.path), ": ",
                   json_text(row_to_json(row)));
  }
  return text + "\n  }\n}\n";
}

std::string PartitionPlan::to_json() const { return partitioning::plan_text(*this, {}); }

PartitionPlan PartitionPlan::from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  SMP_REQUIRE(base::json_member<std::string>(json, "format", name) == kFormat, name,
              ": \"format\" is not \"", kFormat, "\"; this is not a plan");
  const int version = base::json_member<int>(json, "version", name);
  SMP_REQUIRE(version == kVersion || version == kVersionWithRun, name, ": written in version ",
              version, " of the format, this build reads versions ", kVersion, " and ",
              kVersionWithRun, "; make the plan again");
  const Json modules = base::json_member<Json>(json, "modules", name);
  const int pp_size = base::json_member<int>(json, "pp_size", name);
  SMP_REQUIRE(pp_size >= 1 && pp_size <= base::kMostStages, name, ": \"pp_size\" is ", pp_size,
              ", expected at least 1 and at most ", base::kMostStages);
  auto rows = rows_from_json(modules, pp_size, name);
  auto summary = summary_of(json, rows, pp_size, name);
  return PartitionPlan(pp_size, std::move(rows), std::move(summary));
}

PartitionPlan PartitionPlan::read(const std::string& path) {
  return from_json(base::read_file(path, base::kMostJsonBytes), path);
}

void PartitionPlan::write(const std::string& path) const { base::write_file(path, to_json()); }

std::string PartitionPlan::table(int width) const { return partitioning::plan_table(*this, width); }

}  // namespace smp
