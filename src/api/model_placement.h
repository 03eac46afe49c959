// api/model_placement.h: carrying out a plan: every routed module knows its stage, every rank holds
// its own tensors (paper §4.1; docs/design.md, Placement).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "api/describe_model.h"
#include "smp/plan.h"
#include "smp/rank.h"

namespace smp {

class Runtime;

/// Which stage owns which parameter and buffer of one placed model. Threads: the rank's.
class ModelPlacement {
 public:
  /// Places the model that `description` describes: numbers its routed modules, frees the tensors
  /// of other stages, and gives this rank's delayed ones their values, last, when nothing else is
  /// in memory that will not stay. A TensorImpl stays who it is, since optimizers know it.
  ModelPlacement(Runtime& runtime, const ModelDescription& description, const PartitionPlan& plan);

  /// Whether `tensor` is a parameter or buffer of the model that lives on `stage`.
  [[nodiscard]] bool is_on(PpRank stage, const at::Tensor& tensor) const;

 private:
  struct PlacedTensor {
    std::string name;
    at::Tensor tensor;
    PpRank owner;
  };
  std::vector<PlacedTensor> find_owners(const ModelDescription& description,
                                        const PartitionPlan& plan);
  static void keep_own_tensors(Runtime& runtime, const std::vector<PlacedTensor>& tensors);

  std::unordered_map<const void*, PpRank> owners_;  // by TensorImpl
};

}  // namespace smp
