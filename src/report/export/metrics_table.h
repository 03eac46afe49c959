// report/export/metrics_table.h: the lines of metrics.jsonl as a table for spreadsheets. Threads:
// any.
#pragma once

#include <string>

namespace smp::report {

/// CSV as RFC 4180 has it: a heading, then a row a line; columns in the order in which names first
/// appear, empty where a line lacks the name. A broken last line, as a killed run leaves it, is
/// passed over. Empty if there is no line.
std::string metrics_to_csv(const std::string& metrics);

}  // namespace smp::report
