// config/config_fields.h: how a JSON value becomes a field of Config, and which values are right.
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
#include "config/config_keys.h"

namespace smp::base {

/// Conversion between JSON and a field of type T.
template <class T>
struct Field;

template <class T>
requires std::is_integral_v<T>
struct Field<T> {
  static constexpr KeyType kType = KeyType::kInteger;
  static std::optional<T> read(const Json& value) { return json_as<T>(value); }
  static Json write(T value) { return value; }
};

template <>
struct Field<bool> {
  static constexpr KeyType kType = KeyType::kBoolean;
  static std::optional<bool> read(const Json& value) {
    if (value == 0 || value == 1) return value == 1;
    return json_as<bool>(value);
  }
  static Json write(bool value) { return value; }
};

template <>
struct Field<double> {
  static constexpr KeyType kType = KeyType::kNumber;
  static std::optional<double> read(const Json& value) { return json_as<double>(value); }
  static Json write(double value) { return value; }
};

template <>
struct Field<std::string> {
  static constexpr KeyType kType = KeyType::kString;
  static std::optional<std::string> read(const Json& value) { return json_as<std::string>(value); }
  static Json write(const std::string& value) { return value; }
};

template <>
struct Field<std::vector<double>> {
  static constexpr KeyType kType = KeyType::kNumbers;
  static std::optional<std::vector<double>> read(const Json& value) {
    return json_as<std::vector<double>>(value);
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
Rule<T> between(T least, T most) {
  const std::string kind = std::is_floating_point_v<T> ? "a number" : "an integer";
  return {concat(kind, " from ", least, " to ", most),
          [least, most](const T& value) { return value >= least && value <= most; }};
}

/// @param per  what each number is for: "stage"
inline Rule<std::vector<double>> each_between(double least, double most, const char* per) {
  return {concat("a list of numbers from ", least, " to ", most, ", one per ", per),
          [least, most](const std::vector<double>& values) {
            return std::all_of(values.begin(), values.end(), [least, most](double value) {
              return value >= least && value <= most;
            });
          }};
}

inline Rule<bool> any_boolean() {
  return {"true or false", [](bool) { return true; }};
}

inline Rule<std::string> any_text(std::string expected) {
  return {std::move(expected), [](const std::string&) { return true; }};
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
