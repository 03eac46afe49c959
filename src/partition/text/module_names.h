// partition/text/module_names.h: paths of modules, several at a time, as people read them.
#pragma once

#include <string>
#include <vector>

namespace smp::partitioning {

/// Returns "encoder.block" for "encoder.block.3"; empty for a path without a dot.
std::string parent_path(const std::string& path);

/// Returns the paths with neighbours joined: runs of numbered siblings as ranges
/// ("encoder.block[0:4]"), three and more other siblings in braces
/// ("encoder.block.4.{norm, attention, dropout}").
std::vector<std::string> short_names(const std::vector<std::string>& paths);

/// Returns the names with commas between them.
std::string joined(const std::vector<std::string>& names);

}  // namespace smp::partitioning
