// A small model whose parameters are far away, and rows of numbers for it.
#pragma once

#include <torch/types.h>

#include "smp/smp.h"

namespace smp {

inline at::Tensor rows(std::int64_t count, std::int64_t width = 3) {
  return torch::linspace(-1, 1, count * width, torch::kDouble).reshape({count, width});
}

struct FarImpl : torch::nn::Module {
  FarImpl() : linear(register_module("linear", nn::Linear(3, 2))) { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  nn::Linear linear;
};
SMP_MODULE(Far);

struct TopImpl : torch::nn::Module {
  TopImpl() : far(register_module("far", Far())) {}
  at::Tensor forward(const at::Tensor& x) { return far(x); }
  Far far;
};
SMP_MODULE(Top);

/// Its parameters live on the last rank.
struct FarModel {
  FarModel() : net(make()), model(net) {
    model.set_partition("", 0);
    model.set_partition("far", size() - 1);
  }
  static Top make() {
    torch::manual_seed(3);
    return {};
  }
  Far& far() { return net->far; }
  Top net;
  DistributedModel<Top> model;
};

}  // namespace smp
