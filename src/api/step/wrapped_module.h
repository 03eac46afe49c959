// api/step/wrapped_module.h: a module on its way into a DistributedModel.
#pragma once

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

#include "smp/tp/replacement.h"

namespace smp {

class Rank;

/// Puts distributed modules in the place of marked ones in `model`, and says on rank 0 of every
/// marked one why it stays whole, if it does.
/// @throws UsageError  parameters cannot be on the ranks that would have them: a slice is shared
///                     with a module that is not distributed, or values were lost to another model.
std::vector<ReplacementCandidate> spread_marked_modules(const Rank& rank, torch::nn::Module& model);

/// The marks of a model's modules at the moment at which they were followed: later ones come too
/// late, and none may be lost without a word.
class ReadMarks {
 public:
  ReadMarks() = default;
  /// Reads those of `model` and all below it.
  explicit ReadMarks(torch::nn::Module& model);
  /// @throws UsageError  a module of `model` is marked that was not then, or the other way round:
  ///                     names it
  void require_same(torch::nn::Module& model) const;

 private:
  std::set<std::string> marked_;  // paths
};

}  // namespace smp
