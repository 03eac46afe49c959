// checkpoint/group_match.h: which group of a saved optimizer is which group of another one.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace smp::checkpoints {

/// A group of an optimizer's parameters, as names tell of it.
struct ParameterGroup {
  std::set<std::string> names;            ///< of the parameters that have one
  std::size_t nameless = 0;               ///< how many more parameters it has
  std::map<std::string, double> options;  ///< by name
};

/// Returns, for each group of `own`, the number of the group of `saved` that is the same one.
///
/// That is the one with the same names, wherever it is listed. Groups without any are those with as
/// many nameless parameters, in order. If `saved` does not tell of any parameters though `own`
/// does, groups are told apart by their options other than "lr", which programs change while they
/// run, as long as it does not matter which of several is taken.
/// @throws UsageError  a group has no counterpart or several, with the names in all groups of both
///                     that have none
std::vector<std::size_t> match_groups(const std::vector<ParameterGroup>& saved,
                                      const std::vector<ParameterGroup>& own);

}  // namespace smp::checkpoints
