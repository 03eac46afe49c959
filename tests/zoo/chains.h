// zoo/chains.h: chains, residuals, skips, and modules used again.
#pragma once

#include "zoo/zoo.h"

namespace smp::zoo {

struct TanhLinearImpl : torch::nn::Module {
  explicit TanhLinearImpl(int64_t width)
      : linear(register_module("linear", nn::Linear(width, width))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(linear(x)); }
  nn::Linear linear;
};
SMP_MODULE(TanhLinear);

struct MlpImpl : ModelImpl {
  MlpImpl() {
    for (int i = 0; i < 6; ++i) layers->push_back(TanhLinear(8));
    register_module("layers", layers);
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    return {layers->forward(in[0]).pow(2).mean()};
  }
  nn::Sequential layers;
};

struct ResidualBlockImpl : torch::nn::Module {
  explicit ResidualBlockImpl(int64_t width)
      : up(register_module("up", nn::Linear(width, 2 * width))),
        down(register_module("down", nn::Linear(nn::LinearOptions(2 * width, width).bias(false)))) {
  }
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(x))); }
  nn::Linear up, down;
};
SMP_MODULE(ResidualBlock);

struct ResidualImpl : ModelImpl {
  ResidualImpl() {
    for (int i = 0; i < 5; ++i) blocks->push_back(ResidualBlock(8));
    register_module("blocks", blocks);
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = in[0];
    for (const auto& block : *blocks) x = block->as<ResidualBlock>()->forward(x);
    return {x.pow(2).mean()};
  }
  nn::ModuleList blocks;
};

/// A cell used ten times, its state carried along.
struct RecurrentImpl : ModelImpl {
  RecurrentImpl()
      : cell(register_module("cell", nn::GRUCell(6, 8))),
        head(register_module("head", nn::Linear(8, 3))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto state = torch::zeros({in[0].size(0), 8}, in[0].options());
    for (int t = 0; t < 10; ++t) state = cell(in[0].select(1, t), state);
    return {head(state).pow(2).mean()};
  }
  nn::GRUCell cell;
  nn::Linear head;
};

/// Skips across stages, two deep.
struct UNetImpl : ModelImpl {
  UNetImpl()
      : down1(register_module("down1", TanhLinear(8))),
        down2(register_module("down2", TanhLinear(8))),
        bottom(register_module("bottom", TanhLinear(8))),
        up2(register_module("up2", nn::Linear(16, 8))),
        up1(register_module("up1", nn::Linear(16, 8))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto a = down1(in[0]);
    auto b = down2(a);
    auto c = bottom(b);
    c = up2(torch::cat({c, b}, 1));
    return {up1(torch::cat({c, a}, 1)).pow(2).mean()};
  }
  TanhLinear down1, down2, bottom;
  nn::Linear up2, up1;
};

/// One weight reached from two remote branches whose backwards run at the same time.
struct SharedBranchImpl : torch::nn::Module {
  explicit SharedBranchImpl(TanhLinear shared)
      : own(register_module("own", nn::Linear(8, 8))), shared(std::move(shared)) {}
  Tensor forward(const Tensor& x, int times) {
    auto y = own(x);
    for (int i = 0; i < times; ++i) y = shared(y) + y;
    return y;
  }
  nn::Linear own;
  TanhLinear shared;  // registered by the model
};
SMP_MODULE(SharedBranch);

struct SharedImpl : ModelImpl {
  SharedImpl()
      : shared(register_module("shared", TanhLinear(8))),
        left(register_module("left", SharedBranch(shared))),
        right(register_module("right", SharedBranch(shared))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = in[0];
    const bool again = x.sum().item<double>() > 0;
    auto y = left(x, again ? 2 : 1) * right(x, 1) + shared(x);
    return {y.pow(2).mean()};
  }
  TanhLinear shared;
  SharedBranch left, right;
};

inline std::vector<Case> chains() {
  const auto rows = [](int64_t count) {
    return [count](int step) { return std::vector<Tensor>{numbers(step, {count, 8})}; };
  };
  std::vector<std::string> layers, blocks;
  for (int i = 0; i < 6; ++i) layers.push_back("layers." + std::to_string(i));
  for (int i = 0; i < 5; ++i) blocks.push_back("blocks." + std::to_string(i));
  blocks.push_back("blocks.1.up");
  blocks.push_back("blocks.3.down");
  return {
      {"mlp chain", makes<MlpImpl>(), rows(16), layers},
      {"uneven batch", makes<MlpImpl>(), rows(13), layers},
      {"eval before train", makes<MlpImpl>(), rows(16), layers, false, false, 2},
      {"residual", makes<ResidualImpl>(), rows(16), blocks},
      {"rnn cell used 10 times",
       makes<RecurrentImpl>(),
       [](int step) {
         return std::vector<Tensor>{numbers(step, {8, 10, 6})};
       },
       {"cell", "head"}},
      {"u-net skips", makes<UNetImpl>(), rows(16), {"down1", "down2", "bottom", "up2", "up1"}},
      {"weight shared by branches", makes<SharedImpl>(), rows(16), {"shared", "left", "right"}},
  };
}

}  // namespace smp::zoo
