// api/model/describe_model.h: a torch::nn::Module as the plain data the partitioner needs (paper
// App. C.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "smp/detail/call.h"

namespace torch::nn {
class Module;
}

namespace smp {

/// The tree of a model's modules, with the objects behind its nodes (same index).
struct ModelDescription {
  partitioning::ModuleTree tree;
  std::vector<torch::nn::Module*> modules;
  std::vector<RoutedBase*> routed;  ///< nullptr where a module is not routed
  bool traced_on_device = false;    ///< smp::trace_on_device()
};

/// Returns the tree of `model`, with modules in the order of registration; runs none of them. The
/// model must outlive the result.
[[nodiscard]] ModelDescription describe_model(torch::nn::Module& model);

}  // namespace smp
