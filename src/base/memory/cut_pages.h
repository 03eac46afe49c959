// base/memory/cut_pages.h: mapped files of which pages may be gone when they are read.
#pragma once

#include <cstddef>

namespace smp::base {

/// Copies `size` bytes from a mapped file. The system ends a process that reads a mapped page which
/// its file lost meanwhile, or which the disk cannot give (SIGBUS); here that is an answer.
/// Memory that is written past the caches, as of a file that is read once: whoever uses it next
/// finds it in memory, and nothing else was driven out of the caches.
/// @param to  no part of a mapped file
/// @returns   false if a page of `from` could not be read; some of `to` may have been written
/// Threads: any. Other faults of the process, on other threads too, go where they went before.
bool copy_mapped(void* to, const void* from, std::size_t size);

/// Reads `size` bytes of a mapped file by `read(state, from, size)`, with the same answer.
/// @param read   leaves no object behind that needs its destructor, if it is left in the middle
/// @param state  is what it was half made into then
bool read_mapped(void (*read)(void* state, const char* from, std::size_t size) noexcept,
                 void* state, const char* from, std::size_t size);

}  // namespace smp::base
