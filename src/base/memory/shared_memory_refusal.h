// base/memory/shared_memory_refusal.h: why a machine refuses memory that processes share, in words
// for the user, with what to do about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smp::base {

struct MemoryRefusal {
  std::string reason;  ///< "File too large (8 MiB are needed, ...)"; empty: nothing was refused
  std::string remedy;  ///< "`ulimit -f unlimited` ..."; empty: none is known
};

/// Explains why SharedMemory::make() was refused. A pure function.
/// @param error  errno, as it is after SharedMemory::make(bytes) returned nothing
/// @param longest_file  bytes, of RLIMIT_FSIZE; -1: no limit
MemoryRefusal refusal_to_make(int error, std::size_t bytes, std::int64_t longest_file);
/// Explains why SharedMemory::open() was refused. A pure function.
/// @param error  errno, as it is after SharedMemory::open() returned nothing for what is offered
MemoryRefusal refusal_to_open(int error);

/// Returns the longest file that this process may write in bytes (RLIMIT_FSIZE); -1: no limit.
std::int64_t longest_file() noexcept;

}  // namespace smp::base
