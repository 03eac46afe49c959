// server/graph/leaf_guards.h: LibTorch's own backward in the body of a step is refused where it
// reaches a parameter of a model (docs/design.md, Backward).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <string>
#include <utility>
#include <vector>

#include "module/node_pointer.h"

namespace smp::server {

/// A hook of a parameter's AccumulateGrad node, which LibTorch's engine calls before it
/// accumulates. In the body that comes from loss.backward(), which would neither weight the loss
/// nor wait for other ranks. Inside of modules, below a node of ours, and outside of steps it is as
/// good as in one process.
class LeafGuard final : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafGuard(std::string path) : path_(std::move(path)) {}
  /// Returns `gradients`. @throws UsageError  the body of a step has begun LibTorch's own backward.
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override;

 private:
  std::string path_;
};

/// The guards of one model's parameters on this rank; keeps their AccumulateGrad nodes alive, which
/// autograd alone would make anew for every graph. Threads: the rank's.
class LeafGuards {
 public:
  /// Guards `parameter` from now on; it may be frozen. Does nothing for tensors that cannot have
  /// gradients.
  void add(const std::string& path, const at::Tensor& parameter);

 private:
  std::vector<NodePointer<torch::autograd::Node>> leaves_;
};

}  // namespace smp::server
