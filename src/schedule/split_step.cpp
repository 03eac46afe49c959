// schedule/split_step.cpp: sizes are left out of comparisons.
#include "schedule/split_step.h"

#include <algorithm>

#include "base/check.h"

namespace smp::schedule {
namespace {

using base::concat;

/// Returns what was split, without its sizes.
std::string kind_of(const SplitArgument& argument) {
  auto kind = argument.what;
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

std::string to_text(const SplitArgument& argument) {
  return concat(argument.name, ", ", argument.what, ", ", argument.how,
                argument.hint.empty() ? "" : concat(" (", argument.hint, ")"));
}

}  // namespace

bool split_alike(const SplitStep& one, const SplitStep& other) {
  return std::equal(one.arguments.begin(), one.arguments.end(), other.arguments.begin(),
                    other.arguments.end(), [](const SplitArgument& a, const SplitArgument& b) {
                      return a.name == b.name && a.how == b.how && kind_of(a) == kind_of(b);
                    });
}

std::string to_text(const SplitStep& step) {
  std::string text =
      concat("a step split its batch of ", step.rows, step.rows == 1 ? " row" : " rows", " into ",
             step.microbatches, step.microbatches == 1 ? " microbatch" : " microbatches");
  const char* before = ": argument ";
  for (const auto& argument : step.arguments) {
    text += before + to_text(argument);
    before = "; argument ";
  }
  return text;
}

}  // namespace smp::schedule
