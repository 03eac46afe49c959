// report/folder/find_runs.h: which folders are runs, for who named one that is none.
#pragma once

#include <string>

namespace smp::report {

/// Returns the newest folder of a run, or of a plan, in `parent`; "" if there is none.
[[nodiscard]] std::string newest_run(const std::string& parent);

/// Refuses what was named as a run: says what it is not, and which run there is.
/// @param path   a file or folder, or nothing
/// @param lacks  of a folder: "holds no step"
/// @throws UsageError  always
[[noreturn]] void refuse_run(const std::string& path, const std::string& lacks);

}  // namespace smp::report
