// checkpoint/module_tensors.h: a module's parameters and buffers, with all their names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "smp/state_dict.h"

namespace smp::checkpoints {

/// One tensor of a module and all names under which it is registered, in PyTorch's order.
struct NamedTensor {
  at::Tensor tensor;
  std::vector<std::string> names;
};

/// Returns each parameter and buffer of `module` once, with all its names.
std::vector<NamedTensor> tensors_of(const torch::nn::Module& module);

/// Builds the state dict of `module` in PyTorch's order of names: values[i], unless undefined,
/// under each name of tensors[i].
StateDict dict_of(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                  const std::vector<at::Tensor>& values);

}  // namespace smp::checkpoints
