// config/given_settings.h: the settings that sources give, and how messages name them.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "config/config_sources.h"
#include "smp/config.h"

namespace smp::base {

/// Of each key the setting that wins so far. Refers to the values in force, for keys that nobody
/// gives. Threads: any, one at a time.
class GivenSettings {
 public:
  explicit GivenSettings(const Config& values) : values_(values) {}

  /// Returns "microbatches = 0 (flag --smp.microbatches)".
  static std::string named(const Setting& setting);
  /// Returns the same for a key; for one that nobody gives with its value in force, "(default)" or
  /// what implies it.
  std::string named(const std::string& key) const;

  bool given(const std::string& key) const { return winners_.contains(key); }
  /// Returns the setting of `key`, or nullptr if nobody gives it.
  const Setting* find(const std::string& key) const;
  void set(const std::string& key, Setting setting) {
    winners_.insert_or_assign(key, std::move(setting));
  }
  void remove(const std::string& key) { winners_.erase(key); }

  /// Notes that another setting stands for the value of `key`. @param origin  "implied by ..."
  void imply(const std::string& key, std::string origin) {
    implied_.insert_or_assign(key, std::move(origin));
  }
  /// Returns that origin, or nullptr.
  const std::string* implied(const std::string& key) const;

 private:
  const Config& values_;
  std::map<std::string, Setting> winners_;      // by the key's main name
  std::map<std::string, std::string> implied_;  // origins, likewise
};

}  // namespace smp::base
