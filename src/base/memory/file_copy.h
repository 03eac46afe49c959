// base/memory/file_copy.h: large parts of files, from the pages that the system keeps of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/input_file.h"

namespace smp::base {

/// Fills `to` from the byte `offset` of `file`, as InputFile::read_at() does, for much that nobody
/// reads soon: straight from the pages that the system keeps of the file, which are mapped a few
/// MiB at a time. What cannot be mapped is read. Threads: any.
/// @throws UsageError  the file is too short, also if it was cut meanwhile, or unreadable
void copy_from(const InputFile& file, std::uint64_t offset, void* to, std::size_t size);

namespace detail {

/// Calls `read(state, bytes, size)` for a part of a file where the system keeps it. Returns false
/// if it could not be read there to its end as it is now, and `state` is of no use.
bool read_where_it_is(const InputFile& file, std::uint64_t offset, std::size_t size,
                      void (*read)(void* state, const char* bytes, std::size_t size) noexcept,
                      void* state);
/// Returns how many of `size` bytes from `offset` on to take at a time.
std::size_t bytes_at_once(std::uint64_t offset, std::uint64_t size);

}  // namespace detail

/// Gives `state.add(text)` the bytes of `file` from `offset` on, a part at a time, in order: of
/// much that nobody keeps, as for a checksum, in the pages that the system has of the file. Where
/// that cannot be, they are read.
/// @param state  trivially copyable; add() takes a std::string_view, throws nothing and keeps no
///               object that has a destructor while it looks at the text
/// @throws UsageError  as InputFile::read_at()
template <class State>
void read_in_place(const InputFile& file, std::uint64_t offset, std::uint64_t size, State& state) {
  static_assert(std::is_trivially_copyable_v<State>);
  static_assert(noexcept(state.add(std::string_view())));
  const auto add = [](void* to, const char* bytes, std::size_t count) noexcept {
    static_cast<State*>(to)->add(std::string_view(bytes, count));
  };
  while (size > 0) {
    const auto count = detail::bytes_at_once(offset, size);
    State next = state;
    if (detail::read_where_it_is(file, offset, count, add, &next)) {
      state = next;
    } else {
      file.read_parts(offset, count, [&](std::string_view part) { state.add(part); });
    }
    offset += count;
    size -= count;
  }
}

}  // namespace smp::base
