// samples/branch/main.cpp: trains three models with a branch, a loop and two towers over the ranks.
//
//     mpirun -n 4 branch
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdio>

#include "models.h"

namespace {

using torch::Tensor;

constexpr int kSteps = 30;
constexpr int64_t kRows = 64;

/// Trains `net` on what `draw` returns, an (input, target) pair a step; prints the loss on rank 0.
template <class Net, class Draw, class Loss>
void train(const char* name, Net net, const Draw& draw, const Loss& loss_of) {
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, torch::optim::Adam(net->parameters(), 5e-3));
  auto run = smp::step([&](const auto& input, const Tensor& target) {
    Tensor loss = loss_of(model(input), target);
    model.backward(loss);
    return loss;
  });
  for (int step = 1; step <= kSteps; ++step) {
    const auto [input, target] = draw();
    optimizer.zero_grad();
    const auto loss = run(input, target).reduce_mean().template item<float>();
    optimizer.step();
    if (smp::rank() == 0 && (step == 1 || step == kSteps)) {
      std::printf("%-12s step %2d  loss %.4f\n", name, step, loss);
    }
  }
}

/// Rows whose spread differs from microbatch to microbatch; the target is the sum of sines.
std::pair<Tensor, Tensor> uneven_rows() {
  const Tensor spread = 0.5 + torch::rand({kRows / 8, 1, 1});
  const Tensor x = (torch::randn({kRows / 8, 8, 8}) * spread).flatten(0, 1);
  return {x, x.sin().sum(1, /*keepdim=*/true)};
}

/// Visits of which a user likes those items that are close to him in number.
std::pair<branch::Visit, Tensor> visits(int64_t users, int64_t items) {
  const branch::Visit visit{torch::randint(users, {kRows}), torch::randint(items, {kRows})};
  return {visit, ((visit.user - visit.item).abs() < 8).to(torch::kFloat)};
}

}  // namespace

int main(int argc, char** argv) {
  auto session = smp::init(argc, argv, {.microbatches = 8});
  torch::manual_seed(1);
  const auto squared = [](const Tensor& y, const Tensor& target) {
    return torch::mse_loss(y, target);
  };
  const auto logistic = [](const Tensor& score, const Tensor& target) {
    return torch::binary_cross_entropy_with_logits(score, target);
  };
  train("branch", branch::Experts(), uneven_rows, squared);
  train("loop", branch::Refiner(), uneven_rows, squared);
  train(
      "two towers", branch::Recommender(24, 24), [] { return visits(24, 24); }, logistic);
}
