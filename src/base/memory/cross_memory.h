// base/memory/cross_memory.h: reading the memory of another process of this machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace smp::base {

/// Copies bytes at `address` of `process` to `into` through the kernel, without help of the other
/// process. Returns false if it is gone, or the machine does not allow it (a container, another
/// user, kernel.yama.ptrace_scope); then `into` may be filled in part. Any thread.
[[nodiscard]] bool read_process_memory(std::int64_t process, std::uint64_t address,
                                       std::span<std::byte> into) noexcept;

}  // namespace smp::base
