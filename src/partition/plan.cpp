// partition/plan.cpp: PartitionPlan and its file, one line per module.
#include "smp/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/nearest.h"
#include "partition/module_tree.h"
#include "partition/plan_table.h"

namespace smp {
namespace {

using base::concat;
using base::Json;

constexpr const char* kFormat = "smp-plan";
constexpr int kVersion = 1;

Json row_to_json(const PartitionPlan::Row& row) {
  if (row.parameters.empty()) return row.pp_rank;
  return {{"pp_rank", row.pp_rank},
          {"parameters", row.parameters},
          {"elements", row.elements},
          {"bytes", row.bytes}};
}

PartitionPlan::Row row_from_json(const std::string& path, const Json& value,
                                 const std::string& name) {
  PartitionPlan::Row row;
  row.path = path;
  if (value.is_number_integer()) {
    row.pp_rank = value.get<int>();
    return row;
  }
  const std::string place = concat(name, ": module ", partition::quoted_path(path));
  row.pp_rank = base::json_member<int>(value, "pp_rank", place);
  row.parameters = base::json_member<std::string>(value, "parameters", place);
  row.elements = base::json_member<std::int64_t>(value, "elements", place);
  row.bytes = base::json_member<std::int64_t>(value, "bytes", place);
  return row;
}

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace

PartitionPlan::PartitionPlan(int pp_size, std::vector<Row> rows)
    : pp_size_(pp_size), rows_(std::move(rows)) {}

std::uint64_t PartitionPlan::model_hash() const {
  std::string text;
  for (const Row& row : rows_) text += concat(row.path, ": ", row.parameters, "\n");
  return XXH3_64bits(text.data(), text.size());
}

int PartitionPlan::stage_of(std::string_view path) const {
  std::vector<std::string> paths;
  for (const Row& row : rows_) {
    if (row.path == path) return row.pp_rank;
    paths.push_back(row.path);
  }
  throw UsageError(
      concat("the plan has no module \"", path, "\"", base::did_you_mean(path, paths)));
}

std::string PartitionPlan::to_json() const {
  std::string text = concat("{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion,
                            ",\n  \"pp_size\": ", pp_size_, ",\n  \"model\": \"",
                            hash_text(model_hash()), "\",\n  \"modules\": {");
  for (const Row& row : rows_) {
    text += concat(&row == &rows_.front() ? "\n" : ",\n", "    ", Json(row.path).dump(), ": ",
                   row_to_json(row).dump());
  }
  return text + "\n  }\n}\n";
}

PartitionPlan PartitionPlan::from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  SMP_REQUIRE(base::json_member<std::string>(json, "format", name) == kFormat, name,
              ": \"format\" is not \"", kFormat, "\"; this is not a plan");
  const int version = base::json_member<int>(json, "version", name);
  SMP_REQUIRE(version == kVersion, name, ": written in version ", version,
              " of the format, this build reads version ", kVersion, "; make the plan again");
  const Json modules = base::json_member<Json>(json, "modules", name);
  SMP_REQUIRE(modules.is_object(), name, ": \"modules\" must map module paths to stages");
  const int pp_size = base::json_member<int>(json, "pp_size", name);
  SMP_REQUIRE(pp_size >= 1, name, ": \"pp_size\" is ", pp_size, ", expected at least 1");
  std::vector<Row> rows;
  for (const auto& [path, value] : modules.items()) {
    rows.push_back(row_from_json(path, value, name));
    const int stage = rows.back().pp_rank;
    SMP_REQUIRE(stage >= 0 && stage < pp_size, name, ": module ", partition::quoted_path(path),
                " is on stage ", stage, ", but there are ", pp_size, " stages, numbered from 0");
  }
  return PartitionPlan(pp_size, std::move(rows));
}

PartitionPlan PartitionPlan::read(const std::string& path) {
  return from_json(base::read_file(path), path);
}

void PartitionPlan::write(const std::string& path) const { base::write_file(path, to_json()); }

std::string PartitionPlan::table() const { return partition::plan_table(*this); }

}  // namespace smp
