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

/// The most bytes and levels of brackets that parse_json() reads: far above what this library
/// writes, and low enough that a wrong file ends with a message, before memory or stack run out.
inline constexpr std::size_t kMostJsonBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMostJsonDepth = 64;

/// Parses `text`; `name` (a path, or "environment SM_HP_MP_PARAMETERS") leads the messages.
/// @throws UsageError  broken JSON, with line and column; a key given twice in one object; a number
///                     beyond what a double holds; more bytes or deeper brackets than the above.
Json parse_json(std::string_view text, const std::string& name);

/// Parses `text`; returns nothing where parse_json() throws. For files whose last line may be torn.
std::optional<Json> find_json(std::string_view text);

/// Reads and parses the file `path`. @throws UsageError  as parse_json(), or it cannot be read
Json read_json(const std::string& path);

/// Returns `value` as text on one line. Bytes of a string that are no UTF-8 become the replacement
/// character.
std::string json_text(const Json& value);

/// Returns the line and column of the first `"key":` in `text` as "4:3", or an empty string.
std::string json_position(const std::string& text, const std::string& key);

/// Returns `value` as a T, or nothing if that would lose something: 1.9 and 4294967297 are no int.
/// T is a bool, a number, a string, Json, or a vector of these.
template <class T>
std::optional<T> json_as(const Json& value);

/// Returns the member `key` of `object` as a T.
/// @throws UsageError  it is missing or no T; the message begins with `name`
template <class T>
T json_member(const Json& object, const std::string& key, const std::string& name);

/// Returns the element `index` of `list` as a T.
/// @throws UsageError  it is missing or no T; the message begins with `name`
template <class T>
T json_element(const Json& list, std::size_t index, const std::string& name);

}  // namespace smp::base

#include "config/json_values.h"
