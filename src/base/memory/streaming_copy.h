// base/memory/streaming_copy.h: copies of what nobody reads soon.
#pragma once

#include <cstddef>

namespace smp::base {

/// memcpy() past the caches, where the processor can: what is written is not read first, and drives
/// nothing out of them. Worth it from some hundred KiB on.
void streaming_copy(void* to, const void* from, std::size_t size) noexcept;

}  // namespace smp::base
