// report/folder/split_table.h: how steps split their arguments, in a file and on a page.
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "schedule/split_step.h"

namespace smp::report {

using schedule::SplitStep;

/// Returns the contents of a run's arguments.json.
std::string split_steps_to_json(const std::vector<SplitStep>& steps);
/// Reads what split_steps_to_json() wrote.
/// @throws UsageError  `text`, of the file `name`, is something else
std::vector<SplitStep> split_steps_from_json(const std::string& text, const std::string& name);

/// Returns the steps as the rows of a table, with a row of headings.
std::vector<std::vector<std::string>> split_rows(const std::vector<SplitStep>& steps);

}  // namespace smp::report
