// report/folder/continued_run.h: the folder of a run whose job was interrupted, made ready for the
// job that goes on.
#pragma once

#include <cstdint>
#include <string>

namespace smp::report {

/// Removes from metrics.jsonl and the file for TensorBoard what steps after `last_step` left, and
/// the rings of the ranks that ended, so that a job that does these steps again leaves none twice.
/// Torn ends, as a killed job leaves them, go too. Each file is replaced in one step.
/// @return  when the run was started, UTC
/// @throws UsageError     the folder is no run's, or one of these files is broken; nothing is
///                        changed then.
/// @throws ResourceError  a file cannot be written.
std::string continue_run(const std::string& folder, std::int64_t last_step);

}  // namespace smp::report
