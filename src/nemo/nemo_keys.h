// nemo/nemo_keys.h: the values of a configuration, and which of them nobody has asked for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "config/json.h"

namespace smp::nemo {

/// A configuration as a list of dotted names. One of NeMo is a tree of `trainer`, `model` and so
/// on, or what is below `model` alone; one of Megatron-LM has `language_model`, `model_parallel`
/// and keys at the root.
class NemoKeys {
 public:
  /// @param tree  with references resolved
  /// @param name  leads the messages: a path
  /// @throws UsageError  it is no map
  NemoKeys(const base::Json& tree, std::string name);

  /// A value and the name under which it was found.
  template <class T>
  struct Found {
    std::string key;
    T value;
    std::string text() const { return base::concat(key, " = ", base::json_text(value)); }
  };

  /// Returns the value that is there under one of `names`, which all mean the same; it is used
  /// then. Nothing where all are missing or null, and where it cannot be known: such are lost.
  /// @throws UsageError  it is no T, or no finite number; the message says what it is
  template <class T>
  std::optional<Found<T>> find(std::initializer_list<const char*> names) {
    auto found = find_json(names);
    if constexpr (std::is_same_v<T, base::Json>) {
      return found;
    } else {
      if (!found) return std::nullopt;
      auto value = base::json_as<T>(found->value);
      SMP_REQUIRE(value, name_, ": ", found->text(), ", expected ", base::json_kind<T>());
      return Found<T>{found->key, *std::move(value)};
    }
  }
  /// Returns such a whole number. @throws UsageError  it is not from `least` to `most`
  std::optional<Found<std::int64_t>> find_count(std::initializer_list<const char*> names,
                                                std::int64_t least = 1,
                                                std::int64_t most = 2'147'483'647);
  template <class T>
  T value_or(std::initializer_list<const char*> names, T other) {
    const auto found = find<T>(names);
    return found ? found->value : other;
  }

  const std::string& name() const noexcept { return name_; }
  /// True if there are keys that begin with `prefix`.
  bool has_below(const std::string& prefix) const {
    const auto first = values_.lower_bound(prefix);
    return first != values_.end() && first->first.starts_with(prefix);
  }
  /// Those that cannot be known here: references to what is not there, and "???".
  const std::vector<std::string>& unknown() const noexcept { return unknown_; }
  /// What nobody has asked for and is not null, as "key = value".
  struct Left {
    std::string key;
    std::string text;
  };
  std::vector<Left> left() const;

 private:
  std::optional<Found<base::Json>> find_json(std::initializer_list<const char*> names);
  void flatten(const base::Json& value, const std::string& prefix);

  std::string name_;
  std::vector<std::string> order_;
  std::map<std::string, base::Json> values_;
  std::set<std::string> used_;
  std::vector<std::string> unknown_;
};

}  // namespace smp::nemo
