// report/folder/metrics_line.cpp: see the header.
#include "report/folder/metrics_line.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "config/json.h"

namespace smp::report {
namespace {

using base::Json;

Json number_to_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::optional<double> number_from_json(const Json& value) {
  if (value.is_number()) return value.get<double>();
  using Limits = std::numeric_limits<double>;
  if (value == "inf") return Limits::infinity();
  if (value == "-inf") return -Limits::infinity();
  if (value == "nan") return Limits::quiet_NaN();
  return std::nullopt;
}

}  // namespace

std::string metrics_line(const NamedNumbers& numbers) {
  Json line = Json::object();
  for (const auto& [name, value] : numbers) {
    const bool whole = std::isfinite(value) && std::abs(value) < 1e15 && value == std::floor(value);
    line[name] = whole ? Json(static_cast<std::int64_t>(value)) : number_to_json(value);
  }
  return base::json_text(line);
}

std::optional<NamedNumbers> numbers_of(std::string_view line) {
  const auto json = base::find_json(line);
  if (!json) return std::nullopt;
  NamedNumbers numbers;
  if (!json->is_object()) return numbers;
  for (const auto& [name, value] : json->get_ref<const Json::object_t&>()) {
    if (const auto number = number_from_json(value)) numbers.emplace_back(name, *number);
  }
  return numbers;
}

std::optional<double> number_named(const NamedNumbers& numbers, std::string_view name) {
  for (const auto& [key, number] : numbers) {
    if (key == name) return number;
  }
  return std::nullopt;
}

}  // namespace smp::report
