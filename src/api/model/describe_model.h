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

/// A model's tree, with the objects behind its nodes (same index).
struct ModelDescription {
  partitioning::ModuleTree tree;
  std::vector<torch::nn::Module*> modules;
  std::vector<RoutedBase*> routed;  ///< nullptr where a module is not routed
};

/// Walks over the modules in the order of registration; runs none. The model must outlive the
/// result.
[[nodiscard]] ModelDescription describe_model(torch::nn::Module& model);

}  // namespace smp
