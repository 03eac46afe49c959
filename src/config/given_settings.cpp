// config/given_settings.cpp: a message names the key as it was written, its value and its origin.
#include "config/given_settings.h"

#include "base/check.h"
#include "base/text/excerpt.h"
#include "config/config_keys.h"

namespace smp::base {

std::string GivenSettings::named(const Setting& setting) {
  const std::string text =
      setting.is_text ? setting.value.get<std::string>() : json_text(setting.value);
  return concat(setting.key, " = ", text.empty() ? "nothing" : excerpt(text), " (", setting.origin,
                ")");
}

std::string GivenSettings::named(const std::string& key) const {
  if (const auto* winner = find(key)) return named(*winner);
  const auto* const origin = implied(key);
  return concat(key, " = ", json_text(find_config_key(key)->load(values_)), " (",
                origin != nullptr ? *origin : kDefaultOrigin, ")");
}

const std::string* GivenSettings::implied(const std::string& key) const {
  const auto found = implied_.find(key);
  return found == implied_.end() ? nullptr : &found->second;
}

const Setting* GivenSettings::find(const std::string& key) const {
  const auto winner = winners_.find(key);
  return winner == winners_.end() ? nullptr : &winner->second;
}

}  // namespace smp::base
