// server/graph/node_hooks.h: the hooks of tensors that hang on a node, called as LibTorch's engine
// does.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::server {

/// Calls the tensor hooks of `node`, which may replace the gradients in `inputs`. Where one node
/// stands for several (BoundaryInput, AsyncNode), those of what no gradient reaches are not called:
/// in one process each has a node of its own.
/// @throws what a hook throws; UsageError if one would see a part of a gradient only
void call_tensor_hooks(torch::autograd::Node& node, torch::autograd::variable_list& inputs);

/// True if the program has a hook on `tensor`, or retains its gradient.
bool is_hooked(const at::Tensor& tensor) noexcept;

}  // namespace smp::server
