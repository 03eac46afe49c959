// base/json.h: JSON with comments, keys in the order of the file. For .cpp files only: it is slow
// to compile.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace smp::base {

using Json = nlohmann::ordered_json;

/// Parses `text`; `name` (a path, or "environment SM_HP_MP_PARAMETERS") leads the messages.
/// @throws UsageError  with line and column: broken JSON, or a key given twice in one object.
Json parse_json(const std::string& text, const std::string& name);

/// "4:3", the line and column of the first `"key":` in `text`, or empty.
std::string json_position(const std::string& text, const std::string& key);

/// The member `key` of `object` as a T. @throws UsageError  led by `name`: missing or another type.
template <class T>
T json_member(const Json& object, const std::string& key, const std::string& name);

}  // namespace smp::base

#include "base/check.h"

template <class T>
T smp::base::json_member(const Json& object, const std::string& key, const std::string& name) {
  SMP_REQUIRE(object.is_object() && object.contains(key), name, ": \"", key, "\" is missing");
  try {
    return object.at(key).get<T>();
  } catch (const Json::exception&) {
    throw UsageError(
        concat(name, ": \"", key, "\" has an unexpected type: ", object.at(key).dump()));
  }
}
