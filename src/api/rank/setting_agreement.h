// api/rank/setting_agreement.h: every rank has the same settings, where they must be equal.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace smp {

namespace base {
class ResolvedConfig;
}

/// The text of every rank, in order of ranks. All call it.
using GatherTexts = std::function<std::vector<std::string>(const std::string& own)>;

/// Which settings differ is found out only where their hashes do. Collective, and before ranks are
/// connected: how they are is a setting.
/// @throws UsageError  on every rank, with each key that differs, both values and their origins.
void require_same_settings(const GatherTexts& gather, const base::ResolvedConfig& config);

}  // namespace smp
