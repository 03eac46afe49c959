// base/text/excerpt.h: foreign text for a message: short, on one line, without control characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace smp::base {

/// The most bytes that a message quotes of one value.
inline constexpr std::size_t kExcerptBytes = 120;

/// Returns `text` itself if it is printable UTF-8 of at most `most` bytes. Otherwise returns its
/// two ends with the number of bytes between them, "abc… (9990 more bytes) …xyz", where control
/// characters, and bytes that are no UTF-8, appear as "\x1b".
std::string excerpt(std::string_view text, std::size_t most = kExcerptBytes);

}  // namespace smp::base
