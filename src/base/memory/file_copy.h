// base/memory/file_copy.h: large parts of files in memory, without a way through the caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/input_file.h"

namespace smp::base {

/// Fills `to` from the byte `offset` of `file`, as InputFile::read_at() does, for much that nobody
/// reads soon: straight from the pages that the system keeps of the file, which are mapped a few
/// MiB at a time. What cannot be mapped is read. Threads: any.
/// @throws UsageError  the file is too short, also if it was cut meanwhile, or unreadable
void copy_from(const InputFile& file, std::uint64_t offset, void* to, std::size_t size);

}  // namespace smp::base
