// hf/name_pattern.cpp: see the header.
#include "hf/name_pattern.h"

#include <algorithm>

#include "base/check.h"

namespace smp::hf {
namespace {

constexpr std::string_view kNumber = "{}";

bool is_rest(std::string_view pattern) { return pattern == "*"; }

}  // namespace

std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string> parts;
  while (!pattern.empty()) {
    if (is_rest(pattern)) {
      parts.emplace_back(name);
      return parts;
    }
    if (pattern.starts_with(kNumber)) {
      const auto digits = std::min(name.find_first_not_of("0123456789"), name.size());
      if (digits == 0) return std::nullopt;
      parts.emplace_back(name.substr(0, digits));
      name.remove_prefix(digits);
      pattern.remove_prefix(kNumber.size());
    } else {
      if (name.empty() || name[0] != pattern[0]) return std::nullopt;
      name.remove_prefix(1);
      pattern.remove_prefix(1);
    }
  }
  return name.empty() ? std::optional(std::move(parts)) : std::nullopt;
}

std::string filled(std::string_view pattern, const std::vector<std::string>& parts) {
  std::string name;
  std::size_t next = 0;
  while (!pattern.empty()) {
    const bool rest = is_rest(pattern);
    if (rest || pattern.starts_with(kNumber)) {
      SMP_ASSERT(next < parts.size());
      name += parts[next++];
      pattern.remove_prefix(rest ? 1 : kNumber.size());
    } else {
      name += pattern[0];
      pattern.remove_prefix(1);
    }
  }
  return name;
}

std::size_t gaps(std::string_view pattern) {
  std::size_t count = pattern.ends_with('*') ? 1 : 0;
  for (auto at = pattern.find(kNumber); at != std::string_view::npos;
       at = pattern.find(kNumber, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace smp::hf
