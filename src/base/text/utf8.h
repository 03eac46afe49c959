// base/text/utf8.h: where characters of UTF-8 text end.
#pragma once

#include <cstddef>
#include <string_view>

namespace smp::base {

/// Returns the bytes of the first character of `text`, which must not be empty; 0 if it is not
/// valid UTF-8: a stray or missing byte, a longer form than needed, half of a surrogate pair.
std::size_t character_length(std::string_view text) noexcept;

/// True if all of `text` is valid UTF-8.
bool is_utf8(std::string_view text) noexcept;

}  // namespace smp::base
