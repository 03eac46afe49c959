// nemo/references.cpp: each text is worked out where it is met; what it refers to, before it.
#include "nemo/references.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smp::nemo {
namespace {

using base::Json;

constexpr std::string_view kBegin = "${";
constexpr int kMostSteps = 32;  // from a reference to the value; more are a circle

using Path = std::vector<std::string>;

/// Returns the end of the reference that begins at `begin`: after its bracket.
std::size_t end_of(std::string_view text, std::size_t begin) {
  int open = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kBegin)) ++open;
    if (text[i] == '}' && --open == 0) return i + 1;
  }
  return std::string_view::npos;
}

/// Returns what str() makes of it in Python, for values that are alike there and here.
std::optional<std::string> text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return std::nullopt;
}

class Resolver {
 public:
  explicit Resolver(Json& root) : root_(root) {}

  void all() {
    Path path;
    walk(root_, path);
  }

 private:
  void walk(Json& value, Path& path) {
    if (value.is_object()) {
      for (auto& [key, member] : value.items()) {
        path.push_back(key);
        walk(member, path);
        path.pop_back();
      }
    } else if (value.is_array()) {
      path.emplace_back();  // its elements are one level down
      for (auto& element : value) walk(element, path);
      path.pop_back();
    } else if (has_reference(value)) {
      auto found = meaning(value.get<std::string>(), path, 0);
      if (found) value = *std::move(found);
    }
  }

  /// Returns what the text at `path` means.
  std::optional<Json> meaning(const std::string& text, const Path& path, int steps) const {
    if (steps > kMostSteps) return std::nullopt;
    const auto first = text.find(kBegin);
    if (first == std::string::npos) return text;
    if (first == 0 && end_of(text, 0) == text.size()) {
      return target(text.substr(2, text.size() - 3), path, steps);
    }
    std::string joined;
    std::size_t at = 0;
    for (auto begin = first; begin != std::string::npos; begin = text.find(kBegin, at)) {
      const auto end = end_of(text, begin);
      if (end == std::string::npos) return std::nullopt;
      const auto value = target(text.substr(begin + 2, end - begin - 3), path, steps);
      const auto part = value ? text_of(*value) : std::nullopt;
      if (!part) return std::nullopt;
      joined += text.substr(at, begin - at) + *part;
      at = end;
    }
    return joined + text.substr(at);
  }

  /// Returns the value that is meant by what is between the brackets.
  std::optional<Json> target(const std::string& inside, const Path& path, int steps) const {
    const auto written = meaning(inside, path, steps + 1);
    if (!written || !written->is_string()) return std::nullopt;
    const auto name = written->get<std::string>();
    if (name.starts_with("multiply:")) return product(name.substr(9));
    if (name.find(':') != std::string::npos) return std::nullopt;
    return at(name, path, steps);
  }

  static std::optional<Json> product(const std::string& factors) {
    const auto numbers = base::find_json("[" + factors + "]");
    if (!numbers || numbers->size() != 2) return std::nullopt;
    const auto first = base::json_as<std::int64_t>((*numbers)[0]);
    const auto second = base::json_as<std::int64_t>((*numbers)[1]);
    std::int64_t result = 0;
    if (first && second && !__builtin_mul_overflow(*first, *second, &result)) return result;
    const auto left = base::json_as<double>((*numbers)[0]);
    const auto right = base::json_as<double>((*numbers)[1]);
    return left && right ? std::optional<Json>(*left * *right) : std::nullopt;
  }

  std::optional<Json> at(std::string_view name, const Path& from, int steps) const {
    Path path;
    if (name.starts_with('.')) {
      auto up = name.find_first_not_of('.');
      if (up == std::string_view::npos || up > from.size()) return std::nullopt;
      path.assign(from.begin(), from.end() - static_cast<std::ptrdiff_t>(up));
      name.remove_prefix(up);
    }
    while (!name.empty()) {
      const auto dot = name.find('.');
      path.emplace_back(name.substr(0, dot));
      name = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
    }
    const Json* value = &root_;
    for (const auto& key : path) {
      if (!value->is_object() || !value->contains(key)) return std::nullopt;
      value = &value->at(key);
    }
    if (!has_reference(*value)) return *value;
    return meaning(value->get<std::string>(), path, steps + 1);
  }

  Json& root_;
};

}  // namespace

void resolve_references(Json& root) { Resolver(root).all(); }

bool has_reference(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().find(kBegin) != std::string::npos;
}

}  // namespace smp::nemo
