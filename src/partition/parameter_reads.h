// partition/parameter_reads.h: which module reads which weight, to find those that several must
// share a stage for (paper App. C.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "partition/tracer.h"

namespace smp::partitioning {

/// Tells a module's own weights from those of others. A module that is not routed is a part of the
/// routed one above it.
class ParameterReads {
 public:
  explicit ParameterReads(const std::vector<TracedModel>& models);

  /// Module `module` of model `model` (-1: the step body) reads `tensor`.
  void note(int model, int module, const at::Tensor& tensor);

  /// Reads of foreign weights in one model, each once, in order of module and parameter.
  std::vector<simulate::WeightUse> foreign_uses(int model) const;

 private:
  struct Parameter {
    int model;
    int number;             // in ModuleTree::parameters
    std::set<int> holders;  // the routed modules it belongs to
  };
  std::unordered_map<const void*, Parameter> parameters_;  // by TensorImpl
  std::vector<std::set<std::pair<int, int>>> uses_;        // by model: (module, parameter)
};

}  // namespace smp::partitioning
