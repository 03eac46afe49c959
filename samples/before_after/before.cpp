// Trains a residual network to tell two spirals apart.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace nn = torch::nn;
using torch::Tensor;

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(int64_t width)
      : norm_(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        widen_(register_module("widen", nn::Linear(width, 4 * width))),
        narrow_(register_module("narrow", nn::Linear(4 * width, width))) {}

  Tensor forward(const Tensor& x) { return x + narrow_(torch::gelu(widen_(norm_(x)))); }

 private:
  nn::LayerNorm norm_;
  nn::Linear widen_, narrow_;
};
TORCH_MODULE(Block);

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(int64_t width, int64_t depth)
      : first_(register_module("first", nn::Linear(2, width))),
        last_(register_module("last", nn::Linear(width, 2))) {
    for (int64_t i = 0; i < depth; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), Block(width)));
    }
  }

  Tensor forward(const Tensor& points) {
    Tensor hidden = first_(points);
    for (auto& block : blocks_) hidden = block(hidden);
    return last_(hidden);
  }

 private:
  nn::Linear first_, last_;
  std::vector<Block> blocks_;
};
TORCH_MODULE(Net);

struct Batch {
  Tensor points;  // [B, 2]
  Tensor arms;    // [B], 0 or 1
};

Batch spirals(int64_t rows) {
  const Tensor arms = torch::randint(0, 2, {rows});
  const Tensor turn = 9 * torch::rand({rows}).sqrt();
  const Tensor angle = turn + M_PI * arms;
  const Tensor points = torch::stack({turn * angle.cos(), turn * angle.sin()}, 1) / 9;
  return {points, arms};
}

int main() {
  torch::manual_seed(1);
  Net net(64, 6);
  torch::optim::AdamW optimizer(net->parameters(), 3e-3);

  const auto train = [&](const Tensor& points, const Tensor& arms) {
    Tensor loss = torch::nn::functional::cross_entropy(net(points), arms);
    loss.backward();
    return loss;
  };

  for (int step = 1; step <= 100; ++step) {
    const Batch batch = spirals(256);
    optimizer.zero_grad();
    const Tensor loss = train(batch.points, batch.arms);
    optimizer.step();
    if (step % 20 == 0) std::printf("%3d  %.4f\n", step, loss.item<float>());
  }
}
