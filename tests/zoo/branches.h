// zoo/branches.h: control flow that depends on data, modules that are not called, frozen parts.
#pragma once

#include "zoo/chains.h"
#include "zoo/zoo.h"

namespace smp::zoo {

/// Another path for each microbatch, and one module that nobody calls.
struct BranchImpl : ModelImpl {
  BranchImpl()
      : a(register_module("a", nn::Linear(8, 8))),
        b(register_module("b", nn::Linear(8, 8))),
        never(register_module("never", nn::Linear(8, 8))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = in[0];
    for (int i = 0; i < 5; ++i) {
      x = x.sum().item<double>() > 0 ? torch::tanh(a(x)) : torch::tanh(b(x)) + 0.1;
    }
    return {x.pow(2).mean()};
  }
  nn::Linear a, b, never;
};

/// The number of turns is data.
struct LoopImpl : ModelImpl {
  LoopImpl() : body(register_module("body", TanhLinear(8))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = in[0];
    const auto turns = 1 + in[1].max().item<int64_t>();
    for (int64_t i = 0; i < turns; ++i) x = body(x);
    return {x.pow(2).mean()};
  }
  TanhLinear body;
};

struct IdentityImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return x; }
};
SMP_MODULE(Identity);

/// A module that returns its argument, and a frozen one whose input needs a gradient.
struct FrozenImpl : ModelImpl {
  FrozenImpl()
      : first(register_module("first", TanhLinear(8))),
        same(register_module("same", Identity())),
        frozen(register_module("frozen", TanhLinear(8))),
        last(register_module("last", TanhLinear(8))) {
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = first(in[0]);
    auto y = same(x);
    return {last(frozen(y) + x).pow(2).mean()};
  }
  TanhLinear first;
  Identity same;
  TanhLinear frozen, last;
};

inline std::vector<Case> branches() {
  const auto rows = [](int step) { return std::vector<Tensor>{numbers(step, {16, 8})}; };
  return {
      {"branch per microbatch, module never called",
       makes<BranchImpl>(),
       rows,
       {"a", "b", "never"}},
      {"loop count from data",
       makes<LoopImpl>(),
       [](int step) {
         return std::vector<Tensor>{numbers(step, {16, 8}), tokens(step, 4, {16})};
       },
       {"body"}},
      {"frozen part, module that returns its input",
       makes<FrozenImpl>(),
       rows,
       {"first", "same", "frozen", "last"}},
  };
}

}  // namespace smp::zoo
