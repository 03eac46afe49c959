// config/setting_checks.h: whether the settings in force make sense together.
#pragma once

#include <string>
#include <vector>

#include "base/check.h"
#include "config/given_settings.h"
#include "smp/config.h"

namespace smp::base {

/// Checks settings that are each right by themselves. Refers to everything it is made of. Threads:
/// any, one at a time.
class SettingChecks {
 public:
  /// @param values    in force; those that follow from the size of the job are set
  /// @param problems  gets what cannot be, each with what to do
  /// @param warnings  gets what is allowed but cannot have been meant
  SettingChecks(Config& values, const GivenSettings& given, std::vector<std::string>& problems,
                std::vector<std::string>& warnings)
      : values_(values), given_(given), problems_(problems), warnings_(warnings) {}

  /// @param world_size  ranks of the job; 0 if unknown
  void run(int world_size);

 private:
  template <class... Parts>
  void problem(const Parts&... parts) {
    problems_.push_back(concat(parts...));
  }
  void check_world(int started);
  void check_degrees(int world);
  void check_degree(int world, int tp);
  void check_placement();
  void check_stage_weights();
  void check_devices();
  void check_modes();
  void check_pipeline();
  void check_masters();

  Config& values_;
  const GivenSettings& given_;
  std::vector<std::string>& problems_;
  std::vector<std::string>& warnings_;
};

}  // namespace smp::base
