// partition/simulated/json_numbers.h: numbers of files that people may have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/json.h"

namespace smp::partitioning {

inline constexpr double kMostSeconds = 1e9;
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 44;

inline bool is_from(double value, double least, double most) {
  return value >= least && value <= most;
}

/// Reads a quantity, 0 to kMostSeconds, so that no sum of quantities overflows.
/// @throws UsageError  it is none; `name` leads the message
double quantity_at(const base::Json& numbers, std::size_t index, const std::string& name);
/// Reads bytes, 0 to kMostBytes. @throws UsageError
std::int64_t bytes_at(const base::Json& numbers, std::size_t index, const std::string& name);
/// Requires an array of `count` numbers, or of `more` in addition. @throws UsageError
void require_numbers(const base::Json& numbers, std::size_t count, const char* what,
                     const std::string& name, std::size_t more = 0);

}  // namespace smp::partitioning
