// api/model/candidate_table.h: which modules are spread over tensor-parallel ranks and which are
// not, for people to read.
#pragma once

#include <string>
#include <vector>

#include "smp/tp/replacement.h"

namespace smp {

/// Returns a table with a line for each class of modules and fate, and how many modules share it.
/// Modules whose paths differ in numbers only are one path, "layers.*.out". Empty without
/// candidates.
/// @param ranks  tensor-parallel degree
std::string candidate_table(const std::vector<ReplacementCandidate>& candidates, int ranks);

}  // namespace smp
