// samples/quickstart/main.cpp: a complete program, shown in the README.
//
//     mpirun --oversubscribe -n 4 build/release/samples/quickstart/quickstart
// README begin
#include <smp/smp.h>
#include <torch/torch.h>

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", smp::nn::LayerNorm(smp::nn::LayerNormOptions({64})))),
        linear(register_module("linear", smp::nn::Linear(64, 64))) {}
  torch::Tensor forward(torch::Tensor x) { return x + torch::gelu(linear(norm(x))); }
  smp::nn::LayerNorm norm;
  smp::nn::Linear linear;
};
SMP_MODULE(Block);  // instead of TORCH_MODULE: a Block may live on any rank

int main(int argc, char** argv) {
  auto session = smp::init(argc, argv, {.microbatches = 8});
  torch::manual_seed(1);
  smp::nn::Sequential net(smp::nn::Linear(16, 64), Block(), Block(), Block(), Block(), Block(),
                          Block(), smp::nn::Linear(64, 1));
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, torch::optim::Adam(net->parameters(), 1e-3));

  auto train = smp::step([&](torch::Tensor x, torch::Tensor y) {  // runs once per microbatch
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = 1; step <= 50; ++step) {
    auto x = torch::randn({64, 16});
    optimizer.zero_grad();
    auto loss = train(x, x.sin().sum(1, true)).reduce_mean().item<float>();
    optimizer.step();
    if (smp::rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.4f\n", step, loss);
  }

  torch::NoGradGuard no_grad;  // an evaluation is a step, too
  model.eval();
  auto predict = smp::step([&](torch::Tensor x) { return model(x); });
  auto x = torch::randn({64, 16});
  auto loss = torch::mse_loss(predict(x).concat(), x.sin().sum(1, true)).item<float>();
  if (smp::rank() == 0) std::printf("new rows  loss %.4f\n", loss);
}
// README end
