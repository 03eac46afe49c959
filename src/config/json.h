// config/json.h: JSON with comments, keys in the order of the file; the only way in for JSON of
// others. For .cpp files only: it is slow to compile.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

using Json = nlohmann::ordered_json;

/// What parse_json() reads at most: far above what this library writes, and low enough that a file
/// of something else ends with a message, not with the memory or the stack.
inline constexpr std::size_t kMostJsonBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMostJsonDepth = 64;

/// Parses `text`; `name` (a path, or "environment SM_HP_MP_PARAMETERS") leads the messages.
/// @throws UsageError  broken JSON, with line and column; a key given twice in one object; a number
///                     beyond what a double holds; more bytes or deeper brackets than the above.
Json parse_json(std::string_view text, const std::string& name);

/// Nothing where parse_json() throws: for lines of which the last may be torn.
std::optional<Json> find_json(std::string_view text);

/// The file `path`, parsed. @throws UsageError  as parse_json(), or it cannot be read
Json read_json(const std::string& path);

/// As text on one line. What is no UTF-8 in a string becomes the replacement character.
std::string json_text(const Json& value);

/// "4:3", the line and column of the first `"key":` in `text`, or empty.
std::string json_position(const std::string& text, const std::string& key);

/// `value` as a T if it is one without loss: 1.9 and 4294967297 are no int. T is a bool, a number,
/// a string, Json, or a vector of these.
template <class T>
std::optional<T> json_as(const Json& value);

/// The member `key` of `object` as a T. @throws UsageError  led by `name`: missing or no T
template <class T>
T json_member(const Json& object, const std::string& key, const std::string& name);

/// The element `index` of `list` as a T. @throws UsageError  led by `name`: missing or no T
template <class T>
T json_element(const Json& list, std::size_t index, const std::string& name);

}  // namespace smp::base

#include "config/json_values.h"
