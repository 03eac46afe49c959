// base/memory/cross_memory.cpp: process_vm_readv, which may read less than it was asked for.
#include "base/memory/cross_memory.h"

#include <sys/uio.h>

#include <cerrno>

namespace smp::base {

bool read_process_memory(std::int64_t process, std::uint64_t address,
                         std::span<std::byte> into) noexcept {
  while (!into.empty()) {
    const iovec to{into.data(), into.size()};
    const iovec from{reinterpret_cast<void*>(address), into.size()};
    const auto read = ::process_vm_readv(static_cast<pid_t>(process), &to, 1, &from, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(read));
    address += static_cast<std::uint64_t>(read);
  }
  return true;
}

}  // namespace smp::base
