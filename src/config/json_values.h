// config/json_values.h: templates behind config/json.h, which includes this.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/text/excerpt.h"
#include "config/json.h"

namespace smp::base {

template <class T>
inline constexpr bool kIsJsonInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

/// Describes the values that json_as<T>() takes, for messages: "an integer from 0 to 4294967295".
template <class T>
std::string json_kind() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (kIsJsonInteger<T>) {
    using Limits = std::numeric_limits<T>;
    return concat("an integer from ", +Limits::min(), " to ", +Limits::max());
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a text";
  } else if constexpr (std::is_same_v<T, std::vector<Json>>) {
    return "a list";
  } else {
    return concat("a list, of ", json_kind<typename T::value_type>(), " each");
  }
}

template <class T>
std::optional<T> json_integer(const Json& value) {
  const auto fitting = [](auto number) {
    return std::in_range<T>(number) ? std::optional<T>(static_cast<T>(number)) : std::nullopt;
  };
  if (!value.is_number_integer()) return std::nullopt;
  return value.is_number_unsigned() ? fitting(value.get<std::uint64_t>())
                                    : fitting(value.get<std::int64_t>());
}

template <class T>
std::optional<T> json_list(const Json& value) {
  if (!value.is_array()) return std::nullopt;
  T list;
  for (const Json& element : value) {
    auto item = json_as<typename T::value_type>(element);
    if (!item) return std::nullopt;
    list.push_back(std::move(*item));
  }
  return list;
}

template <class T>
std::optional<T> json_as(const Json& value) {
  if constexpr (std::is_same_v<T, Json>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean() ? std::optional<T>(value.get<bool>()) : std::nullopt;
  } else if constexpr (kIsJsonInteger<T>) {
    return json_integer<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value.is_number() ? std::optional<T>(value.get<T>()) : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string() ? std::optional<T>(value.get<T>()) : std::nullopt;
  } else {
    return json_list<T>(value);
  }
}

/// Returns `value` as a T. @throws UsageError  it is no T
/// @param what  the name of the value, for the message
template <class T>
T required_json(const Json& value, const std::string& what) {
  auto found = json_as<T>(value);
  if constexpr (!std::is_same_v<T, Json>) {
    SMP_REQUIRE(found, what, " is ", excerpt(json_text(value)), ", expected ", json_kind<T>());
  }
  return std::move(*found);
}

template <class T>
T json_member(const Json& object, const std::string& key, const std::string& name) {
  SMP_REQUIRE(object.is_object() && object.contains(key), name, ": \"", key, "\" is missing");
  return required_json<T>(object.at(key), concat(name, ": \"", key, "\""));
}

template <class T>
T json_element(const Json& list, std::size_t index, const std::string& name) {
  SMP_REQUIRE(list.is_array() && index < list.size(), name, ": ", excerpt(json_text(list)),
              " has no element ", index);
  auto found = json_as<T>(list[index]);
  SMP_REQUIRE(found, name, ": element ", index, " of ", excerpt(json_text(list)), " is ",
              excerpt(json_text(list[index])), ", expected ", json_kind<T>());
  return std::move(*found);
}

}  // namespace smp::base
