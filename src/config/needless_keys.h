// config/needless_keys.h: keys of the original library that ask for what is so here anyway.
#pragma once

#include <string>
#include <vector>

#include "config/config_keys.h"
#include "config/json.h"

namespace smp::base {

/// Every value that `expected` says is accepted, and changes nothing.
struct NeedlessKey {
  std::string name;
  KeyType type;
  std::string expected;
  Json default_value;  ///< of the original; given, it is not worth a word. null: none
  std::string reason;  ///< why nothing changes, as a sentence without its first letter's case

  /// True if `value` is what `expected` says.
  bool takes(const Json& value) const;
};

const std::vector<NeedlessKey>& needless_keys();
/// The key of that name, or nullptr.
const NeedlessKey* find_needless_key(const std::string& name);

}  // namespace smp::base
