// base/memory/process_memory.h: memory that this process has, as the kernel counts it.
#pragma once

#include <cstdint>

namespace smp::base {

/// Returns the bytes of code and data that this process has in memory now; 0 where unknown.
std::int64_t resident_bytes();
/// Returns the most such bytes since the process began, or since forget_peak().
std::int64_t peak_resident_bytes();
/// Resets the peak to the present use. Does nothing where the kernel does not allow it.
void forget_peak();

}  // namespace smp::base
