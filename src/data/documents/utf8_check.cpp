// data/documents/utf8_check.cpp: see the header.
#include "data/documents/utf8_check.h"

#include "base/check.h"
#include "base/text/utf8.h"

namespace smp::data {
namespace {

// Where the first byte is that belongs to no character.
std::size_t valid_bytes(std::string_view text) {
  auto left = text;
  while (!left.empty()) {
    const auto length = base::character_length(left);
    if (length == 0) break;
    left.remove_prefix(length);
  }
  return text.size() - left.size();
}

}  // namespace

void require_utf8(std::string_view text, std::string_view file,
                  const std::function<std::string()>& place) {
  if (base::is_utf8(text)) return;
  const auto at = valid_bytes(text);
  const bool in_file = std::less_equal<>()(file.data(), text.data()) &&
                       std::less<>()(text.data(), file.data() + file.size());
  const auto byte = in_file ? static_cast<std::size_t>(text.data() - file.data()) + at : at;
  throw UsageError(base::concat(
      place(), ": byte ", byte, " of the ", in_file ? "file" : "text", ", 0x", std::hex,
      static_cast<unsigned>(static_cast<unsigned char>(text[at])), std::dec,
      ", is no UTF-8 text: convert the file, or set skip_damaged to leave such documents out"));
}

}  // namespace smp::data
