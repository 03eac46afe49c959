// server/values/link_follower.h: makes linked outputs at the caller of what it has.
// Threads: the rank's; runs operators of LibTorch, so not in a poll.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <string_view>
#include <vector>

#include "module/node_pointer.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

/// Changes `arguments` as the module did, makes the linked outputs, and drops tensors that were
/// only sent for that. Outputs in `requires_grad` get `node`, which may be nullptr if there are
/// none, as their history, and `node` an input for every tensor of `outputs`.
/// @param note  the note that take_links() returned
/// @param path  the path of the module, for messages
/// @throws UnsupportedError  it changed an argument that shares memory with another one, which
///                           had memory of its own there; or what LibTorch says of the change
void follow_links(std::string_view note, std::vector<at::Tensor>& outputs,
                  at::ArrayRef<at::Tensor> arguments, const TensorFlags& requires_grad,
                  const NodePointer<torch::autograd::Node>& node, const char* path);

/// Adds an input to `node` for an output that needs no gradient, or is undefined. A promise of the
/// output may have been used as if it needed one: then LibTorch compares the gradient with the
/// output's shape.
void add_input_without_history(torch::autograd::Node& node, const at::Tensor& output);

}  // namespace smp::server
