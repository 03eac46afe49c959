// support/residual_net.h: blocks of two products with a sum around them, whose activations are easy
// to count. For tests that mark or place its blocks, "block0" and so on.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smp/module.h"
#include "smp/nn/linear.h"

namespace smp::support {

/// Saves its argument, the result of its first product and what silu makes of it; the second
/// product's is its own. [rows, width] to the same.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : wide(register_module("wide", nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + narrow(torch::silu(wide(x))); }
  nn::Linear wide, narrow;
};
SMP_MODULE(Block);

/// The mean of the squares of what the last block returns.
struct ResidualNetImpl : torch::nn::Module {
  ResidualNetImpl(int number, std::int64_t width) {
    for (int i = 0; i < number; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x.square().mean();
  }
  std::vector<Block> blocks;
};
SMP_MODULE(ResidualNet);

}  // namespace smp::support
