// A distributed module that a project outside the source tree writes, with nothing but the
// installed headers: a mixture of prototypes. Two ranks share it, each with samples of its own
// (four make two replicas of that), and it is compared with plain LibTorch on all of them in one
// process.
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

constexpr std::int64_t kWidth = 8, kPrototypes = 12, kRows = 6;

/// Distances to prototypes: of their widths each rank has a slice, and adds up its part of a sum.
struct PrototypesImpl : smp::DistributedModule {
  PrototypesImpl() {
    centres = register_drawn_slice("centres", {kPrototypes, kWidth}, 1,
                                   [](const torch::Tensor& rows, std::int64_t) { rows.normal_(); });
    scale = register_parameter("scale", torch::ones({kPrototypes}));
  }
  torch::Tensor forward(torch::Tensor x) {  // [B, W] -> [B, P]
    const auto slices = smp::slices_of_batch_for_tp(x, 1);
    const auto parts = (slices.unsqueeze(1) - centres).square().sum(2);
    return smp::batch_of_sums_for_tp(parts) * scale;
  }
  torch::Tensor centres, scale;
};
SMP_MODULE(Prototypes);

struct PlainPrototypes : torch::nn::Module {
  PlainPrototypes() {
    centres = register_parameter("centres", torch::empty({kPrototypes, kWidth}).normal_());
    scale = register_parameter("scale", torch::ones({kPrototypes}));
  }
  torch::Tensor forward(torch::Tensor x) {
    return (x.unsqueeze(1) - centres).square().sum(2) * scale;
  }
  torch::Tensor centres, scale;
};

torch::Tensor rows_of(int step, int rank) {
  const auto n = torch::arange(kRows * kWidth, torch::kFloat);
  return torch::sin(n * 0.7 + 5 * step + 2 * rank).view({kRows, kWidth});
}

template <class Output>
torch::Tensor loss_of(const Output& output) {
  return torch::exp(-output).sum(1).log().neg().mean();
}

int main(int argc, char** argv) {
  auto session = smp::init(
      argc, argv, {.pipeline_parallel_degree = 1, .tensor_parallel_degree = 2, .microbatches = 2});
  const int ranks = smp::size();
  torch::manual_seed(1);
  Prototypes net;
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.05));
  auto train = smp::step([&](torch::Tensor x) {
    auto loss = loss_of(model(x));
    model.backward(loss);
    return loss;
  });

  torch::manual_seed(1);
  PlainPrototypes plain;
  torch::optim::SGD stepped(plain.parameters(), 0.05);
  double worst = 0;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    train(rows_of(step, smp::rank()));
    optimizer.step();
    stepped.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (loss_of(plain.forward(rows_of(step, rank))) / ranks).backward();
    }
    stepped.step();
    const auto part = plain.centres.chunk(smp::tp_size(), 1)[smp::tp_rank()];
    worst = std::max(worst, (net->centres - part).abs().max().item<double>());
    worst = std::max(worst, (net->scale - plain.scale).abs().max().item<double>());
  }
  if (smp::rank() == 0) {
    std::printf("prototypes over %d ranks: weights of 5 steps within %.1e of one process\n", ranks,
                worst);
  }
  return worst < 1e-5 ? 0 : 1;
}
