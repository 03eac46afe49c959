// report/export/event_file.h: numbers of steps as TensorBoard reads them: records of a length, the
// checksum of the length, a message and its checksum. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace smp::report {

/// Returns the record that such a file begins with.
/// @param seconds  since 1970, UTC
std::string event_file_header(double seconds);

/// Returns the record of one step; each name becomes a curve.
std::string event_record(double seconds, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& numbers);

/// Returns the records of such a file but those of steps after `last_step`, in order. A torn last
/// record, as a killed process leaves it, goes too.
/// @param bytes  the whole file
/// @param name   leads the messages: the path of the file
/// @throws UsageError  a record before the last is broken.
std::string events_until(const std::string& bytes, std::int64_t last_step, const std::string& name);

}  // namespace smp::report
