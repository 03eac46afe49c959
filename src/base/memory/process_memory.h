// base/memory/process_memory.h: memory that this process has, as the kernel counts it.
#pragma once

#include <cstdint>

namespace smp::base {

/// Bytes in memory now, of code and data; 0 where nobody tells.
std::int64_t resident_bytes();
/// The most since the process began, or since forget_peak().
std::int64_t peak_resident_bytes();
/// From now on the peak is a new one. Does nothing where the kernel does not let us.
void forget_peak();

}  // namespace smp::base
