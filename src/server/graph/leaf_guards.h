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

/// Hook of a parameter's AccumulateGrad node: LibTorch's engine calls it before it accumulates. In
/// the body that is loss.backward(), which would neither weight the loss nor wait for other ranks.
/// Inside of modules, below a node of ours, and outside of steps it is as good as in one process.
class LeafGuard final : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafGuard(std::string path) : path_(std::move(path)) {}
  /// @throws UsageError  as above; else returns `gradients`.
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override;

 private:
  std::string path_;
};

/// The guards of one model's parameters on this rank; keeps their AccumulateGrad nodes alive, which
/// autograd alone would make anew for every graph. Threads: the rank's.
class LeafGuards {
 public:
  /// `parameter`, which may be frozen, is guarded from now on; what cannot have gradients is not.
  void add(const std::string& path, const at::Tensor& parameter);

 private:
  std::vector<NodePointer<torch::autograd::Node>> leaves_;
};

}  // namespace smp::server
