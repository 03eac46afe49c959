// A moving average of weights, made by the ranks that own both copies of them.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/program/place_like.h"

namespace smp {
namespace place_like_test {

using at::Tensor;
using testing::HasSubstr;

constexpr int kSteps = 3;
constexpr double kDecay = 0.8;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)).tanh(); }
  nn::Linear linear;
  nn::LayerNorm norm;
};
SMP_MODULE(Block);

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      all.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : all) x = block(x);
    return x;
  }
  std::vector<Block> all;
};
SMP_MODULE(Tower);

Tower make_tower(int blocks = 5) {
  torch::manual_seed(3);
  return Tower(blocks);
}

Tensor batch(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<unsigned>(step));
  return torch::randn({4, 4}, generator, torch::kDouble);
}

template <class Owns>
void move_average(Tower& average, const Tower& net, const Owns& owns) {
  const at::NoGradGuard no_grad;
  const auto kept = average->parameters(), weights = net->parameters();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (owns(kept[i])) kept[i].mul_(kDecay).add_(weights[i], 1 - kDecay);
  }
}

/// What one process has after kSteps: the sum of what the average gives, step by step.
std::vector<double> in_one_process() {
  auto net = make_tower(), average = make_tower();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  std::vector<double> sums;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net->forward(batch(step)).square().mean().backward();
    optimizer.step();
    move_average(average, net, [](const Tensor&) { return true; });
    const at::NoGradGuard no_grad;
    sums.push_back(average->forward(batch(step)).sin().mean().item<double>());
  }
  return sums;
}

TEST(PlaceLike, OwnersMoveAnAverageOfWeights) {
  const auto expected = in_one_process();
  for (const bool at_once : {false, true}) {
    for (const int stages : {1, 2, 3}) {
      Config config;
      config.plan_cache = "off";
      config.microbatches = 2;
      config.pipeline_parallel_degree = stages;
      run_local(stages * (stages == 2 ? 2 : 1),
                [&] {
                  auto net = make_tower(), average_net = make_tower();
                  DistributedModel model(net), average(average_net);
                  DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.5));
                  if (at_once) model.place();
                  model.on_placed([&] { place_like(average, model); });
                  auto train = step([&](const Tensor& x) {
                    const auto loss = model(x).square().mean();
                    model.backward(loss);
                    return loss;
                  });
                  auto evaluate = step([&](const Tensor& x) { return average(x).sin().mean(); });
                  for (int i = 0; i < kSteps; ++i) {
                    optimizer.zero_grad();
                    train(batch(i));
                    optimizer.step();
                    if (i == 0) average.place();
                    move_average(average_net, net,
                                 [&](const Tensor& kept) { return average.owns(kept); });
                    const at::NoGradGuard no_grad;
                    EXPECT_NEAR(evaluate(batch(i)).reduce_mean().item<double>(),
                                expected[static_cast<std::size_t>(i)], 1e-12);
                  }
                  for (const auto& row : average.plan().rows()) {
                    EXPECT_EQ(row.pp_rank, model.plan().stage_of(row.path)) << row.path;
                  }
                },
                config, {.seed = 1});
    }
  }
}

TEST(PlaceLike, RefusesWhatItCannotPlace) {
  on_ranks(2, [] {
    auto net = make_tower(3), same = make_tower(3), shorter = make_tower(2);
    DistributedModel model(net), copy(same), other(shorter);
    EXPECT_THAT(refusal<UsageError>([&] { place_like(copy, model); }), HasSubstr("is not placed"));
    model.place();
    EXPECT_THAT(refusal<UsageError>([&] { place_like(other, model); }), HasSubstr("'block2'"));
    copy.place();
    EXPECT_THAT(refusal<UsageError>([&] { place_like(copy, model); }),
                HasSubstr("after placement"));
  });
}

}  // namespace place_like_test
}  // namespace smp
