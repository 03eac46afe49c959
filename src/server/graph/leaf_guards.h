// server/graph/leaf_guards.h: what becomes of gradients of a model's parameters that LibTorch's own
// engine computes while a step runs (docs/design.md, Backward).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <string>
#include <utility>
#include <vector>

#include "module/node_pointer.h"

namespace smp::server {

/// A hook of a parameter's AccumulateGrad node, which LibTorch's engine calls before it
/// accumulates. In the body that comes from loss.backward(), which would neither weight the loss
/// nor wait for other ranks: refused. Inside of modules, of hooks, and of nodes of ours, it goes to
/// OwnPasses, which add it in an order that timing cannot change. Outside of steps it is LibTorch's
/// affair.
class LeafGuard final : public torch::autograd::FunctionPreHook {
 public:
  /// `leaf` owns this hook.
  LeafGuard(std::string path, torch::autograd::AccumulateGrad& leaf)
      : path_(std::move(path)), leaf_(leaf) {}
  /// Returns `gradients`, or an undefined one that LibTorch leaves out, because it was taken.
  /// @throws UsageError  the body of a step has begun LibTorch's own backward.
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override;

 private:
  std::string path_;
  torch::autograd::AccumulateGrad& leaf_;
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
