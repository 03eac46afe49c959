// api/model/model_placement.h: carrying out a plan: every routed module knows its stage, every rank
// holds its own tensors (paper §4.1; docs/design.md, Placement).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/model/describe_model.h"
#include "server/modules/foreign_parameters.h"
#include "server/modules/module_table.h"
#include "smp/plan.h"
#include "smp/rank.h"

namespace smp {

class Rank;

/// Returns what a plan says that a module keeps.
[[nodiscard]] server::KeptState kept_state(const PartitionPlan::Row& row);

/// Knows which stage owns which parameter and buffer of one placed model. Threads: the rank's.
class ModelPlacement {
 public:
  /// Places the model that `description` describes: numbers its routed modules, frees the tensors
  /// of other stages, and last gives this rank's delayed tensors their values, when nothing else is
  /// in memory that will not stay. A tensor keeps its TensorImpl, since optimizers know it by that.
  /// @param before_values  called between the two: brings what those values depend on; may suspend
  ///
  /// A tensor is owned by the stage of the module that registered it first. A buffer stays on other
  /// stages too, as a copy, if a module there holds it as well, or if it is small
  /// (partitioning::kSmallBuffer): any code may read it. Not so running statistics.
  ModelPlacement(Rank& rank, const ModelDescription& description, const PartitionPlan& plan,
                 const std::function<void()>& before_values);

  /// True if `stage` owns `tensor`, a parameter or buffer of the model; a copy does not count.
  [[nodiscard]] bool is_on(PpRank stage, const at::Tensor& tensor) const;
  /// Returns the parameters and buffers that have values on `stage`, copies of buffers among them.
  [[nodiscard]] std::vector<at::Tensor> held_on(PpRank stage) const;
  /// Checks that all parameters of `module` and of those below it were there at placement.
  /// @param rank  this rank, for the message
  /// @throws UsageError  one was registered since.
  void require_parameters_of(const torch::nn::Module& module, GlobalRank rank) const;

 private:
  struct PlacedTensor {
    std::string name;
    at::Tensor tensor;
    PpRank owner;
    server::Held held;
    bool everywhere;                   // a small buffer
    std::vector<PpRank> holders = {};  // of a buffer: the stages of modules that registered it
    bool here(PpRank stage) const;
  };
  void find_tensors(const ModelDescription& description, const PartitionPlan& plan);
  void note(const PlacedTensor& found);
  void free_tensors_of_others(Rank& rank) const;
  void keep_own_tensors(Rank& rank) const;

  std::vector<PlacedTensor> tensors_;                     // each once, under its first name
  std::unordered_map<const void*, std::size_t> numbers_;  // in tensors_, by TensorImpl
};

}  // namespace smp
