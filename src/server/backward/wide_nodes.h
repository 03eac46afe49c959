// server/backward/wide_nodes.h: nodes whose kernels would add up many numbers of 16 bits in 16
// bits.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::server {

/// Makes gradients of bfloat16 and float16 float32 if `node` is the backward of a lookup of rows
/// (embedding), whose kernel adds up the gradients of each row in the type that they
/// have: in bfloat16 a row of which 1s come stops at 256 (LibTorch 2.13). What the node gives is
/// rounded to its parameter's type once, as autograd does with every gradient.
void widen_sums(const torch::autograd::Node& node, torch::autograd::variable_list& gradients);

}  // namespace smp::server
