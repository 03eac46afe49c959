// base/text/dotted_version.cpp: see the header.
#include "base/text/dotted_version.h"

#include <charconv>
#include <system_error>

namespace smp::base {

std::vector<std::int64_t> parsed_version(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (;;) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) return numbers;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with('.')) return numbers;
    text.remove_prefix(1);
  }
}

}  // namespace smp::base
