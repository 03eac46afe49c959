// nemo/nemo_keys.cpp: see the header.
#include "nemo/nemo_keys.h"

#include <cmath>
#include <utility>

#include "base/text/excerpt.h"
#include "nemo/references.h"

namespace smp::nemo {

using base::Json;

NemoKeys::NemoKeys(const Json& tree, std::string name) : name_(std::move(name)) {
  SMP_REQUIRE(tree.is_object(), name_, ": expected a map of keys, found ",
              base::excerpt(base::json_text(tree)));
  // The configuration in a checkpoint of NeMo is what is below "model".
  const bool inner = tree.contains("num_layers") && !tree.contains("model");
  flatten(tree, inner ? "model." : "");
}

void NemoKeys::flatten(const Json& value, const std::string& prefix) {
  for (const auto& [key, member] : value.items()) {
    const auto name = prefix + key;
    if (member.is_object()) {
      flatten(member, name + ".");
      continue;
    }
    order_.push_back(name);
    values_[name] = member;
  }
}

std::optional<NemoKeys::Found<Json>> NemoKeys::find_json(std::initializer_list<const char*> names) {
  std::optional<Found<Json>> found;
  for (const std::string name : names) {
    const auto value = values_.find(name);
    if (value == values_.end()) continue;
    used_.insert(name);
    if (value->second.is_null()) continue;
    if (value->second == "???" || has_reference(value->second)) {
      unknown_.push_back(base::concat(name, " = ", base::excerpt(base::json_text(value->second))));
      continue;
    }
    SMP_REQUIRE(!value->second.is_number() || std::isfinite(value->second.get<double>()), name_,
                ": ", name, " is infinite or .nan, expected a finite number");
    SMP_REQUIRE(!found || found->value == value->second, name_, ": ", found->text(), " and ", name,
                " = ", base::json_text(value->second), " mean the same; keep one");
    found = Found<Json>{name, value->second};
  }
  return found;
}

std::optional<NemoKeys::Found<std::int64_t>> NemoKeys::find_count(
    std::initializer_list<const char*> names, std::int64_t least, std::int64_t most) {
  auto found = find<std::int64_t>(names);
  SMP_REQUIRE(!found || (found->value >= least && found->value <= most), name_, ": ", found->text(),
              ", expected ", least, " to ", most);
  return found;
}

std::vector<NemoKeys::Left> NemoKeys::left() const {
  std::vector<Left> left;
  for (const auto& name : order_) {
    const auto& value = values_.at(name);
    if (used_.contains(name) || value.is_null()) continue;
    left.push_back({name, base::concat(name, " = ", base::excerpt(base::json_text(value)))});
  }
  return left;
}

}  // namespace smp::nemo
