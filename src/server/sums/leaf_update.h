// server/sums/leaf_update.h: how a gradient enters `.grad`. Threads: the rank's; runs hooks and
// LibTorch code, so it belongs on a fiber. A hook may suspend it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function.h>

#include "module/node_pointer.h"

namespace smp::server {

/// The sum of gradients on their way to a leaf. Grad mode is that of the last pass that gave one.
struct LeafSum {
  NodePointer<torch::autograd::Node> leaf;  ///< an AccumulateGrad
  bool grad_mode = false;
  at::Tensor gradient;
};

/// True if an update of the leaf runs hooks of the user.
bool has_hooks(torch::autograd::Node& leaf);

/// The two parts of what LibTorch's engine does at a leaf: runs hooks, then AccumulateGrad. The
/// first runs the hooks that come before, which may change the gradient of `sum`; the second adds
/// it, and runs those that come after. `.grad` shares no memory with anything afterwards.
/// @throws what hooks throw.
void run_hooks_before(LeafSum& sum);
void add_to_leaf(LeafSum&& sum);
/// @param add  returns whether it has added a gradient to the `.grad` of a parameter in a way of
/// its own, without hooks
using AddGradient =
    c10::function_ref<bool(const at::Tensor& parameter, const at::Tensor& gradient)>;
void add_to_leaf(LeafSum&& sum, AddGradient add);

}  // namespace smp::server
