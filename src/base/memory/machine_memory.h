// base/memory/machine_memory.h: how much memory the processes of this machine may use together.
#pragma once

#include <cstdint>
#include <string>

namespace smp::base {

/// Returns the bytes of memory of the machine, or the limit of the cgroup (container) that this
/// process is in, if that is less; 0 if unknown.
/// @param root  the folder that holds the kernel's files, for tests
std::int64_t machine_memory(const std::string& root = "");

}  // namespace smp::base
