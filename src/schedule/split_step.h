// schedule/split_step.h: how a step split its arguments into microbatches, in words, for the log
// and for the report of a run. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::schedule {

/// What became of one argument of a step, or of a part of one.
struct SplitArgument {
  std::string name;  ///< as smp::ArgumentName has it: "1", "0.mask", "2[]"
  std::string what;  ///< "Double [8, 3]", "a list of 8 entries"
  std::string how;   ///< "along axis 0", "an entry a row", "whole"
  std::string hint;  ///< what to do if that was not meant; empty: no doubt
};

/// How a step split its batch. Steps that differ in nothing but sizes count as one.
struct SplitStep {
  std::int64_t rows = 0;
  int microbatches = 0;
  std::vector<SplitArgument> arguments;
};

/// True if both steps split arguments of the same kinds alike, whatever their sizes.
bool split_alike(const SplitStep& one, const SplitStep& other);

/// Returns the step as a sentence for the log.
std::string to_text(const SplitStep& step);

}  // namespace smp::schedule
