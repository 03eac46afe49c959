// base/config_fields.h: how a JSON value becomes a field of Config, and which values are right.
// Only the table of keys includes this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/config_keys.h"

namespace smp::base {

/// Conversion between JSON and a field of type T.
template <class T>
struct Field;

template <class T>
requires std::is_integral_v<T>
struct Field<T> {
  static constexpr KeyType kType = KeyType::kInteger;
  static std::optional<T> read(const Json& value) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned()) {
      const auto number = value.get<std::uint64_t>();
      return std::in_range<T>(number) ? std::optional<T>(static_cast<T>(number)) : std::nullopt;
    }
    const auto number = value.get<std::int64_t>();
    return std::in_range<T>(number) ? std::optional<T>(static_cast<T>(number)) : std::nullopt;
  }
  static Json write(T value) { return value; }
};

template <>
struct Field<bool> {
  static constexpr KeyType kType = KeyType::kBoolean;
  static std::optional<bool> read(const Json& value) {
    if (value.is_boolean()) return value.get<bool>();
    if (value == 0 || value == 1) return value == 1;
    return std::nullopt;
  }
  static Json write(bool value) { return value; }
};

template <>
struct Field<double> {
  static constexpr KeyType kType = KeyType::kNumber;
  static std::optional<double> read(const Json& value) {
    if (!value.is_number()) return std::nullopt;
    return value.get<double>();
  }
  static Json write(double value) { return value; }
};

template <>
struct Field<std::string> {
  static constexpr KeyType kType = KeyType::kString;
  static std::optional<std::string> read(const Json& value) {
    if (!value.is_string()) return std::nullopt;
    return value.get<std::string>();
  }
  static Json write(const std::string& value) { return value; }
};

template <>
struct Field<std::vector<double>> {
  static constexpr KeyType kType = KeyType::kNumbers;
  static std::optional<std::vector<double>> read(const Json& value) {
    if (!value.is_array()) return std::nullopt;
    std::vector<double> numbers;
    for (const Json& element : value) {
      if (!element.is_number()) return std::nullopt;
      numbers.push_back(element.get<double>());
    }
    return numbers;
  }
  static Json write(const std::vector<double>& value) { return value; }
};

template <class T>
struct Field<std::optional<T>> {
  static constexpr KeyType kType = Field<T>::kType;
  static std::optional<T> read(const Json& value) { return Field<T>::read(value); }
  static Json write(const std::optional<T>& value) {
    return value ? Field<T>::write(*value) : Json();
  }
};

template <class T>
struct Plain {
  using type = T;
};
template <class T>
struct Plain<std::optional<T>> {
  using type = T;
};

/// Which values of a type are right, and how to say so.
template <class T>
struct Rule {
  std::string expected;
  std::function<bool(const T&)> holds;
};

template <class T>
Rule<T> at_least(T least) {
  const std::string kind = std::is_floating_point_v<T> ? "a number" : "an integer";
  return {concat(kind, ", at least ", least), [least](const T& value) {
            return value >= least && value <= std::numeric_limits<T>::max();
          }};
}

inline Rule<bool> any_boolean() {
  return {"true or false", [](bool) { return true; }};
}

inline Rule<std::string> one_of(std::vector<std::string> values) {
  std::string expected;
  for (const std::string& value : values) {
    expected += expected.empty() ? "" : value == values.back() ? " or " : ", ";
    expected += "\"" + value + "\"";
  }
  return {expected, [values](const std::string& value) {
            return std::find(values.begin(), values.end(), value) != values.end();
          }};
}

}  // namespace smp::base
