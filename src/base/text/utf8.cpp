// base/text/utf8.cpp: RFC 3629, one character at a time.
#include "base/text/utf8.h"

#include <cstdint>

namespace smp::base {
namespace {

// How many bytes a character has by its first; 0 for a byte that begins none.
std::size_t announced_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

// Neither a longer form than needed, nor half of a pair, nor beyond the last character.
bool is_allowed(std::uint32_t code, std::size_t length) {
  if (length == 3) return code >= 0x800 && (code < 0xD800 || code > 0xDFFF);
  return length < 3 || (code >= 0x10000 && code <= 0x10FFFF);
}

}  // namespace

std::size_t character_length(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = announced_length(first);
  if (length <= 1) return length;
  if (length > text.size()) return 0;
  std::uint32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte & 0x3F);
  }
  return is_allowed(code, length) ? length : 0;
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto length = character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace smp::base
