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

/// The member of a plan file that says how the run was trained, and that member's settings.
inline constexpr const char* kRunMember = "run";
inline constexpr const char* kSettingsMember = "settings";

/// Keys of the settings that a plan file brings along (docs/plans.md): what a run computes, in
/// which order and over which paths depends on them.
const std::vector<std::string>& recorded_keys();
/// Returns those of `config` by key, without any that has no effect beside the others. Ranks of one
/// process have no transport to record.
Json settings_to_record(const ResolvedConfig& config);
/// Returns the settings in the text of a plan file; an empty object if it has none.
/// @param name  of the file, leads the messages
/// @throws UsageError  it is no JSON
Json recorded_settings(const std::string& text, const std::string& name);

}  // namespace smp::base
