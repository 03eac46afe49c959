// base/text/byte_text.h: an amount of memory in words.
#pragma once

#include <cstdint>
#include <string>

namespace smp::base {

/// "0.5 MiB", "12 MiB", "23.4 GiB": three significant digits.
std::string byte_text(std::int64_t bytes);

}  // namespace smp::base
