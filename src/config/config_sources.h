// config/config_sources.h: reads flags, environment and file into one list of settings.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/json.h"

namespace smp::base {

/// Lower numbers give way to higher ones.
enum class ConfigSource { kDefault, kCode, kFile, kLauncher, kEnvironment, kFlag };

/// One key as one source gives it.
struct Setting {
  std::string key;       ///< as written there; may be an alias or unknown
  Json value;            ///< null: takes nothing back, as if not given
  bool is_text = false;  ///< `value` is a string still to be read as the key's type
  ConfigSource source = ConfigSource::kDefault;
  std::string origin;  ///< where, for messages
};

struct Settings {
  std::vector<Setting> found;  ///< in ascending precedence
  std::vector<std::string> problems;
};

/// Origins of values that nobody gave: a default, or what another setting stands for.
inline constexpr const char* kDefaultOrigin = "default";
inline constexpr const char* kImpliedOrigin = "implied by ";

/// Every setting that `input` holds; an unreadable or malformed source becomes a problem.
Settings read_sources(const ConfigInput& input);

}  // namespace smp::base
