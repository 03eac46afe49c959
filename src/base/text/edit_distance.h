// base/text/edit_distance.h: "did you mean", for misspelt names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

/// Returns the least number of insertions, deletions, replacements and swaps of neighbours that
/// turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate nearest to `word`, if it is near enough to be what was meant.
std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

/// Returns a hint such as `; did you mean "pipeline"?`, or an empty string if no candidate is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace smp::base
