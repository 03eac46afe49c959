// base/memory/machine_memory.h: how much memory the processes of this machine may use together.
#pragma once

#include <cstdint>
#include <string>

namespace smp::base {

/// In bytes: of the machine, or of the cgroup (a container's limit) that this process is in, if
/// that is less. 0: unknown.
/// @param root  where the files of the kernel are found, for tests
std::int64_t machine_memory(const std::string& root = "");

}  // namespace smp::base
