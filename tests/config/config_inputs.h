// config/config_inputs.h: settings as tests give them, and what is said of them.
#pragma once

#include <string>

#include "config/config.h"
#include "support/refusal.h"

namespace smp::base {

/// Returns the text with which `input` is refused, as refusal() does.
template <class Kind = UsageError>
std::string refusal_of(const ConfigInput& input) {
  return refusal<Kind>([&] { resolve_config(input); });
}

inline ConfigInput with_world(int world_size) {
  ConfigInput input;
  input.world_size = world_size;
  return input;
}

inline ConfigInput with_flag(const std::string& key, const std::string& value, int world_size = 4) {
  ConfigInput input;
  input.world_size = world_size;
  input.flags = {{key, value}};
  return input;
}

inline ConfigInput with_launcher(const std::string& json, int world_size = 4) {
  ConfigInput input;
  input.world_size = world_size;
  input.environment["SM_HP_MP_PARAMETERS"] = json;
  return input;
}

}  // namespace smp::base
