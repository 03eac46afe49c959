// server/backward/wide_nodes.h: nodes whose kernels would add up many numbers of 16 bits in 16
// bits.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <optional>

namespace smp::server {

/// Makes gradients of bfloat16 and float16 float32 if `node` is the backward of a lookup of rows
/// (embedding, embedding_bag; index_select, which may be an index_add), whose kernel adds up the
/// gradients of each row in the type that they have: in bfloat16 a row of which 1s come stops at
/// 256 (LibTorch 2.13). What the node gives is rounded to its parameter's type once, as autograd
/// does with every gradient.
void widen_sums(torch::autograd::Node& node, torch::autograd::variable_list& gradients);

/// Returns what `node` gives for these gradients, added up in float32, if its own kernel would add
/// up in 16 bits and cannot be given float32 gradients: that of rows looked up by x[ids], and on
/// CPUs that of LayerNorm over activations of 16 bits with weights of float32, as autocast makes
/// them (LibTorch 2.13). Nothing: it is any other node, or its gradients are to be differentiated.
std::optional<torch::autograd::variable_list> computed_wide(
    torch::autograd::Node& node, const torch::autograd::variable_list& gradients);

}  // namespace smp::server
