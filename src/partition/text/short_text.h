// partition/text/short_text.h: quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace smp::partitioning {

/// Returns a count as "950", "4.1 K", "4.1 M" or "2.0 G".
std::string short_count(std::int64_t count);

/// Returns a number of bytes as "0", "950 B", "4.1 KiB", "4.1 MiB" or "2.0 GiB".
std::string short_bytes(std::int64_t bytes);

/// Returns a duration as "950 us", "13.1 ms" or "2.50 s".
std::string short_seconds(double seconds);

}  // namespace smp::partitioning
