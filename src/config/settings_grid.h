// config/settings_grid.h: several values of some settings, and every combination of them. Threads:
// any.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace smp::base {

/// The most combinations that one call takes: more is a slip of the pen.
inline constexpr std::size_t kMostCombinations = 10'000;

/// One setting and the values that it shall have, as texts, in the order in which they were given.
struct SettingsAxis {
  std::string key;
  std::vector<std::string> values;
};

/// Returns the settings of flags such as {"microbatches", "2,4,8"}, as take_flags() returns them,
/// in order. Values are separated by commas; those of settings that hold commas themselves, and of
/// any other, may be separated by semicolons instead: {"stage_speeds", "1,1;1,2"}. The key
/// "config", which names a file of settings, is one of them. Values are texts: what they mean is
/// seen where they are used.
/// @throws UsageError  a key is unknown or is given twice, also by its other name, has no value or
///                     the same value twice; or there are more than kMostCombinations.
std::vector<SettingsAxis> settings_axes(
    const std::vector<std::pair<std::string, std::string>>& flags);

/// Returns every combination of the axes' values: a value for each axis, in order; the last axis
/// varies fastest. One empty combination if there is no axis.
std::vector<std::vector<std::string>> combinations(const std::vector<SettingsAxis>& axes);

/// Returns the name of the environment variable that sets `key`: "SMP_MICROBATCHES".
std::string variable_of(const std::string& key);

}  // namespace smp::base
