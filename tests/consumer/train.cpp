// A program of a project outside the source tree, which knows smp only as an installed package: it
// trains one step, on as many ranks as it is started on.
#include <smp/smp.h>
#include <smp/version.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  auto session = smp::init(argc, argv, {.microbatches = 2});
  torch::manual_seed(1);
  smp::nn::Sequential net(smp::nn::Linear(4, 8), smp::nn::Linear(8, 1));
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));

  auto train = smp::step([&](torch::Tensor x) {
    auto loss = model(x).square().mean();
    model.backward(loss);
    return loss;
  });
  const auto x = torch::randn({8, 4});
  const auto first = train(x).reduce_mean().item<double>();
  optimizer.step();
  const auto second = train(x).reduce_mean().item<double>();
  if (smp::rank() == 0) {
    std::printf("smp %s: loss %.4f, then %.4f\n", SMP_VERSION, first, second);
  }
  return second < first ? 0 : 1;
}
