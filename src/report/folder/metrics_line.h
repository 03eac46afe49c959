// report/folder/metrics_line.h: one step in metrics.jsonl. Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smp::report {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// Returns the named numbers of one step as one line of metrics.jsonl, in order. Numbers that are
/// not finite are written as the strings "nan", "inf" and "-inf", since JSON has no such numbers.
std::string metrics_line(const NamedNumbers& numbers);

/// Returns the numbers of a line, in order; nothing if it is no JSON, as a torn line. What is no
/// number is passed over.
std::optional<NamedNumbers> numbers_of(std::string_view line);

/// Returns the number of that name, if there is one.
std::optional<double> number_named(const NamedNumbers& numbers, std::string_view name);

}  // namespace smp::report
