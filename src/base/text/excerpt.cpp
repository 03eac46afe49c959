// base/text/excerpt.cpp: whole characters only, so that what is cut stays UTF-8.
#include "base/text/excerpt.h"

#include "base/text/utf8.h"

namespace smp::base {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string escaped_byte(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0 || is_control(text.front())) {
      shown += escaped_byte(text.front());
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Towards the front by less than a character, so that none is cut.
std::size_t boundary_before(std::string_view text, std::size_t at) {
  for (std::size_t back = 0; back < 4 && back < at; ++back) {
    if (!continues_character(text[at - back])) return at - back;
  }
  return at;
}

}  // namespace

std::string excerpt(std::string_view text, std::size_t most) {
  if (text.size() <= most) return printable(text);
  const std::size_t front = boundary_before(text, most - most / 3);
  const std::size_t back = boundary_before(text, text.size() - most / 3);
  return printable(text.substr(0, front)) + "… (" + std::to_string(back - front) +
         " more bytes) …" + printable(text.substr(back));
}

}  // namespace smp::base
