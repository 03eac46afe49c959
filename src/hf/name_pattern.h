// hf/name_pattern.h: names with numbers in them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smp::hf {

/// Returns what stands in `name` for each {} of `pattern`, which is digits, and for a * at its end,
/// which is anything; nothing if the name is no such name.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view name);

/// Returns `pattern` with `parts` in place of each {} and the *.
std::string filled(std::string_view pattern, const std::vector<std::string>& parts);

/// Returns the number of {} and * in `pattern`.
std::size_t gaps(std::string_view pattern);

}  // namespace smp::hf
