// perf/modes/gradient_penalty.cpp: see the header.
#include "modes/gradient_penalty.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "smp/smp.h"

namespace smp::perf::modes {
namespace {

using at::Tensor;

constexpr int kDepth = 8, kRows = 32;

std::int64_t width() { return brief() ? 16 : 512; }

/// A layer that is curved, so that its gradients have gradients.
struct CurvedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::tanh(linear(x)); }
  nn::Linear linear{register_module("linear", nn::Linear(width(), width()))};
};
SMP_MODULE(Curved);

/// What a WGAN trains against its generator.
struct CriticImpl : torch::nn::Module {
  CriticImpl() {
    for (int i = 0; i < kDepth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Curved()));
    }
    last = register_module("last", nn::Linear(width(), 1));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return last(x);
  }
  std::vector<Curved> layers;
  nn::Linear last{nullptr};
};
SMP_MODULE(Critic);

/// The loss of a critic with a penalty on how steep it is at `x`. @param grad  of y by x
template <class Net, class Grad>
Tensor loss_of(Net& net, const Tensor& batch, const Grad& grad) {
  const auto x = batch.detach().requires_grad_();
  const auto y = net(x);
  const Tensor slope = grad(y.sum(), x);
  return y.mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean();
}

/// Duration of a step on two ranks over that in one process, by turns.
void measure(std::vector<double>& ratios) {
  torch::manual_seed(1);
  Critic alone;
  torch::manual_seed(1);
  Critic net;
  DistributedModel model(net);
  model.set_partition("", 0);
  for (int i = kDepth / 2; i < kDepth; ++i) {
    model.set_partition("layer" + std::to_string(i), 1);
  }
  model.set_partition("last", 1);
  auto train = step([&](const Tensor& x) {
    auto loss = loss_of(model, x, [](const Tensor& y, const Tensor& of) {
      return grad({y}, {of}, {}, std::nullopt, /*create_graph=*/true).front();
    });
    model.backward(loss);
    return loss.detach();
  });
  const auto batch = torch::randn({kMicrobatches * kRows, width()});
  const auto plain = [&](const Tensor& x) {
    return loss_of(alone, x, [](const Tensor& y, const Tensor& of) {
      return torch::autograd::grad({y}, {of}, {}, std::nullopt, /*create_graph=*/true).front();
    });
  };
  for (int i = 0; i < kWarmUpSteps + rounds(15); ++i) {
    alone->zero_grad();
    model.zero_grad();
    barrier();
    double loss = 0, reference = 0;
    const auto distributed =
        microseconds([&] { loss = train(batch).reduce_mean().item<double>(); });
    if (rank() != 0) continue;
    const auto in_one_process = alone_us(plain, batch, &reference);
    SMP_REQUIRE(std::abs(loss - reference) < 1e-4, "losses differ: ", loss, " and ", reference);
    if (i >= kWarmUpSteps) ratios.push_back(distributed / in_one_process);
  }
}

}  // namespace

void report_gradient_penalty(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> ratios;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(Mode::kDynamic, [&] { measure(ratios); });
  }
  if (!report) return;
  report->add_samples(
      "grad_of_grad.over_libtorch", ratios, "1",
      "step with a gradient penalty on 2 ranks over one process of plain LibTorch, a "
      "thread each; 8 layers of 512 x 512 with tanh, half of them on each rank, 8 "
      "microbatches of 32 rows; aim: at most 0.75");
}

}  // namespace smp::perf::modes
