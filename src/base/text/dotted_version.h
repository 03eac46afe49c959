// base/text/dotted_version.h: versions such as "2.31.24.0" as numbers that compare.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace smp::base {

/// Returns the numbers of a version: {2, 31, 24} of "2.31.24". Reads as far as there are numbers
/// with dots between them: {5, 15, 0} of "5.15.0-1053-aws"; nothing of "unknown".
[[nodiscard]] std::vector<std::int64_t> parsed_version(std::string_view text);

}  // namespace smp::base
