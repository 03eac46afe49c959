// base/text/byte_text.h: an amount of memory in words.
#pragma once

#include <cstdint>
#include <string>

namespace smp::base {

/// Returns an amount of memory as "0.5 MiB", "12 MiB" or "23.4 GiB", with three significant digits.
std::string byte_text(std::int64_t bytes);

}  // namespace smp::base
