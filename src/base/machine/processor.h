// base/machine/processor.h: on what kind of processor a process computes.
#pragma once

#include <string>

namespace smp::base {

/// Returns the name of this machine's processor, "AMD EPYC 9654 96-Core Processor"; where the
/// system has none, that of its kind, "aarch64". Any thread.
/// @param cpuinfo  the file in which Linux describes its processors
[[nodiscard]] std::string processor_name(const std::string& cpuinfo = "/proc/cpuinfo");

}  // namespace smp::base
