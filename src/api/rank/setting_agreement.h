// api/rank/setting_agreement.h: every rank has the same settings, where they must be equal.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace smp {

namespace base {
class ResolvedConfig;
}

/// Returns the text of every rank, in order of ranks. All ranks call it.
using GatherTexts = std::function<std::vector<std::string>(const std::string& own)>;

/// Checks that all ranks have the same settings. Only if their hashes differ are the settings
/// themselves compared. Collective, and made before ranks are connected, because how they are
/// connected is a setting.
/// @throws UsageError  on every rank, with each key that differs, both values and their origins.
void require_same_settings(const GatherTexts& gather, const base::ResolvedConfig& config);

}  // namespace smp
