// checkpoint/group_match.cpp: by names, or else by what options tell.
#include "checkpoint/group_match.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace smp::checkpoints {
namespace {

using Groups = std::vector<ParameterGroup>;
using Options = std::map<std::string, double>;

constexpr auto kNoGroup = std::numeric_limits<std::size_t>::max();

std::string text_of(const ParameterGroup& group) {
  std::string text;
  for (const auto& name : group.names) text += (text.empty() ? "" : ", ") + name;
  if (group.nameless > 0) {
    text += base::concat(text.empty() ? "" : ", and ", group.nameless, " of no model");
  }
  return text.empty() ? "no parameters" : text;
}

std::string text_of(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options) {
    text += base::concat(text.empty() ? "" : ", ", name, ' ', value);
  }
  return text;
}

/// Lists those of `groups` for which `listed` is true, a line for each.
template <class Text>
std::string lines_of(const char* whose, const std::size_t count, const std::vector<bool>& listed,
                     Text&& text) {
  std::string lines;
  for (std::size_t g = 0; g < count; ++g) {
    if (listed[g]) lines += base::concat("\n  ", whose, " group ", g, ": ", text(g));
  }
  return lines;
}

bool any_parameter(const Groups& groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return !group.names.empty() || group.nameless > 0; });
}

std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  for (std::size_t g = 0; g < count; ++g) numbers[g] = g;
  return numbers;
}

std::vector<std::size_t> match_by_names(const Groups& saved, const Groups& own) {
  std::vector<std::size_t> found(own.size(), kNoGroup);
  std::vector<bool> left(saved.size(), true);
  for (const bool named : {true, false}) {
    for (std::size_t g = 0; g < own.size(); ++g) {
      if (own[g].names.empty() == named) continue;
      for (std::size_t s = 0; s < saved.size() && found[g] == kNoGroup; ++s) {
        const bool same = saved[s].names == own[g].names && saved[s].nameless == own[g].nameless;
        if (!left[s] || !same) continue;
        found[g] = s;
        left[s] = false;
      }
    }
  }
  if (std::find(left.begin(), left.end(), true) == left.end()) return found;
  std::vector<bool> missing;
  for (const auto s : found) missing.push_back(s == kNoGroup);
  SMP_REQUIRE(
      false,
      "options belong to the parameters of a group, but the dict and the optimizer have them in "
      "different groups:",
      lines_of("the dict's", saved.size(), left, [&](auto s) { return text_of(saved[s]); }),
      lines_of("the optimizer's", own.size(), missing, [&](auto g) { return text_of(own[g]); }),
      "\nMake the optimizer of the groups that were saved, in any order");
}

/// All but those that programs change from step to step.
Options lasting(Options options) {
  options.erase("lr");
  return options;
}

std::vector<std::size_t> match_by_options(const Groups& saved, const Groups& own) {
  const auto same = [](const auto& a, const auto& b) { return a.options == b.options; };
  if (std::adjacent_find(saved.begin(), saved.end(), std::not_fn(same)) == saved.end()) {
    return in_order(own.size());
  }
  std::map<Options, std::vector<std::size_t>> alike;
  for (std::size_t s = 0; s < saved.size(); ++s) alike[lasting(saved[s].options)].push_back(s);
  bool clear = true;
  for (const auto& [options, group] : alike) {
    clear &= std::all_of(group.begin(), group.end(),
                         [&](auto s) { return same(saved[s], saved[group.front()]); });
  }
  std::vector<std::size_t> found;
  std::map<Options, std::size_t> taken;
  for (const auto& group : own) {
    const auto options = lasting(group.options);
    const auto candidates = alike.find(options);
    const auto next = taken[options]++;
    clear &= candidates != alike.end() && next < candidates->second.size();
    if (!clear) break;
    found.push_back(candidates->second[next]);
  }
  const auto all = std::vector<bool>(own.size(), true);
  SMP_REQUIRE(
      clear,
      "the dict does not say which parameters its groups have, as those of earlier versions do "
      "not, "
      "and their options do not tell which is which:",
      lines_of("the dict's", saved.size(), all, [&](auto s) { return text_of(saved[s].options); }),
      lines_of("the optimizer's", own.size(), all,
               [&](auto g) { return text_of(own[g]) + "; " + text_of(own[g].options); }),
      "\nSay it, for each parameter of each group: "
      "dict.insert(\"param_groups.0.params.encoder.weight\", torch::tensor(true))");
  return found;
}

}  // namespace

std::vector<std::size_t> match_groups(const Groups& saved, const Groups& own) {
  const auto all = [](const Groups& groups) { return std::vector<bool>(groups.size(), true); };
  SMP_REQUIRE(
      saved.size() == own.size(), "the dict has ", saved.size(),
      " groups of parameters, the optimizer ", own.size(),
      any_parameter(saved) ? lines_of("the dict's", saved.size(), all(saved),
                                      [&](auto s) { return text_of(saved[s]); })
                           : "",
      lines_of("the optimizer's", own.size(), all(own), [&](auto g) { return text_of(own[g]); }));
  if (!any_parameter(saved) && any_parameter(own)) return match_by_options(saved, own);
  return match_by_names(saved, own);
}

}  // namespace smp::checkpoints
