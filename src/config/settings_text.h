// config/settings_text.h: the resolved configuration for people to read.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace smp::base {

/// Returns key, value and origin of each row, aligned, under each other.
std::string settings_table(const std::vector<ResolvedValue>& rows);

/// Returns the same, and below each row what the setting means and which values it takes.
/// @param width  of the explanations
std::string explained_settings(const std::vector<ResolvedValue>& rows, int width);

}  // namespace smp::base
