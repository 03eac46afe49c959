// api/planning/plan_decision.h: one rank decides, and every rank gets what it decided or why it
// could not.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace smp {

class Rank;

/// Runs `decide` on one rank and gives every rank its result. All ranks that train together call it
/// at once, outside of steps.
/// @param decide  called on pp_rank 0 of the first replica only
/// @return what it returned, on every rank
/// @throws UsageError, ResourceError  on every rank, with the text of what `decide` threw
/// @throws RemoteError                on every rank, if it threw anything else
[[nodiscard]] std::vector<std::string> decided_by_first_rank(
    const Rank& rank, const std::function<std::vector<std::string>()>& decide);

}  // namespace smp
