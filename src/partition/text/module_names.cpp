// partition/text/module_names.cpp: ranges of numbered siblings first, braces around what is left.
#include "partition/text/module_names.h"

#include <charconv>
#include <cstddef>
#include <optional>

#include "base/check.h"

namespace smp::partitioning {
namespace {

using base::concat;

// "encoder.block.3" as ("encoder.block", 3).
struct Numbered {
  std::string prefix;
  int number;
};

std::optional<Numbered> numbered(const std::string& path) {
  const auto dot = path.rfind('.');
  const std::string last = dot == std::string::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return Numbered{parent_path(path), number};
}

std::string range_name(const Numbered& first, int last) {
  const std::string numbers = concat("[", first.number, ":", last + 1, "]");
  return first.prefix.empty() ? numbers : first.prefix + numbers;
}

// Joins neighbours a.0, a.1, a.2 to a[0:3].
std::vector<std::string> with_ranges(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < paths.size();) {
    const auto first = numbered(paths[i]);
    std::size_t next = i + 1;
    for (; first && next < paths.size(); ++next) {
      const auto other = numbered(paths[next]);
      const int expected = first->number + static_cast<int>(next - i);
      if (!other || other->prefix != first->prefix || other->number != expected) break;
    }
    const int last = first ? first->number + static_cast<int>(next - i) - 1 : 0;
    names.push_back(next > i + 1 ? range_name(*first, last) : paths[i]);
    i = next;
  }
  return names;
}

// Joins neighbours a.x, a.y, a.z to a.{x, y, z}.
std::vector<std::string> with_braces(const std::vector<std::string>& paths) {
  constexpr std::size_t kWorthIt = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < paths.size();) {
    const std::string parent = parent_path(paths[i]);
    std::size_t next = i + 1;
    while (!parent.empty() && next < paths.size() && parent_path(paths[next]) == parent) ++next;
    const bool braces = next - i >= kWorthIt;
    std::string list;
    for (std::size_t k = i; k < next; ++k) {
      if (!braces) names.push_back(paths[k]);
      list +=
          (list.empty() ? "" : ", ") + paths[k].substr(parent.size() + (parent.empty() ? 0 : 1));
    }
    if (braces) names.push_back(concat(parent, ".{", list, "}"));
    i = next;
  }
  return names;
}

}  // namespace

std::string parent_path(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

std::vector<std::string> short_names(const std::vector<std::string>& paths) {
  return with_braces(with_ranges(paths));
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += text.empty() ? name : ", " + name;
  return text;
}

}  // namespace smp::partitioning
