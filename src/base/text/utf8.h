// base/text/utf8.h: where characters of UTF-8 text end.
#pragma once

#include <cstddef>
#include <string_view>

namespace smp::base {

/// Bytes of the character that `text`, which is not empty, begins with; 0 if it begins with none:
/// a stray or missing byte, a longer form than needed, half of a surrogate pair.
std::size_t character_length(std::string_view text) noexcept;

}  // namespace smp::base
