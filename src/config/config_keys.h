// config/config_keys.h: the table of configuration keys: type, range, unit and meaning of each.
// Defaults are those of Config{}.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/json.h"
#include "smp/config.h"

namespace smp::base {

/// More have no use, and a number that is only mistyped shall not cost minutes and all memory.
inline constexpr int kMostStages = 1 << 16;
inline constexpr int kMostMicrobatches = 1 << 20;

enum class KeyType { kBoolean, kInteger, kNumber, kString, kNumbers };

/// A key that sets a field of Config.
struct ConfigKey {
  std::string name;                    ///< the field's
  std::string alias;                   ///< older name, or empty
  std::vector<std::string> spellings;  ///< other ones that the original's documents have
  /// Older keys of their own, true or false, and the value of this one that `true` means.
  std::vector<std::pair<std::string, std::string>> switches;
  KeyType type;
  std::string unit;          ///< of a number, or empty: "seconds"
  std::string expected;      ///< "a number from 0 to 3600, in seconds"
  std::string default_text;  ///< as printed in tables, with the unit: "30 seconds"
  std::string meaning;
  bool same_on_all_ranks;  ///< part of the hash that ranks compare
  /// Stores `value`; false (and nothing stored) if it is not what `expected` says.
  std::function<bool(Config&, const Json&)> store;
  /// The field's value; null if it is not set.
  std::function<Json(const Config&)> load;
};

/// What an older key means that is true or false.
struct ConfigSwitch {
  std::string key;    ///< the one that it sets
  std::string value;  ///< what `true` sets it to
};

/// A key of the original library whose feature does not exist here yet.
struct FutureKey {
  std::string name;
  KeyType type;
  Json default_value;  ///< accepted, since it asks for nothing; null: no value is accepted
  std::string feature;
};

const std::vector<ConfigKey>& config_keys();
const std::vector<FutureKey>& future_keys();

/// The key of that name, alias or spelling, or nullptr.
const ConfigKey* find_config_key(const std::string& name);
const FutureKey* find_future_key(const std::string& name);
/// What a key of that name switches on; nothing: there is none.
std::optional<ConfigSwitch> find_config_switch(const std::string& name);
/// Names and aliases of all keys, also of those to come and those that nothing needs.
std::vector<std::string> all_key_names();

/// Turns the text of a flag or an environment variable into a value; null if it is none of `type`.
Json value_from_text(KeyType type, const std::string& text);

}  // namespace smp::base
