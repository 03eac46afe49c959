// report/export/metrics_table.h: the lines of metrics.jsonl as a table for spreadsheets. Threads:
// any.
#pragma once

#include <string>

namespace smp::report {

/// Returns the metrics as CSV (RFC 4180): a heading, then one row per line. Columns come in the
/// order in which names first appear; a cell is empty where the line lacks the name. A broken last
/// line, as a killed run leaves it, is passed over. Empty if there is no line.
std::string metrics_to_csv(const std::string& metrics);

}  // namespace smp::report
