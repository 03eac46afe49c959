// Models with fewer modules than there are stages, beside larger ones: a critic, a loss that has
// weights of its own.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace small_models_test {

using at::Tensor;
using testing::HasSubstr;

constexpr int kSteps = 3;

/// Weighs two losses by what it has learned of their noise (Kendall et al. 2018).
struct WeighingImpl : torch::nn::Module {
  WeighingImpl() : noise(register_parameter("noise", torch::zeros({2}, torch::kDouble))) {}
  Tensor forward(const Tensor& a, const Tensor& b) {
    return a * (-noise[0]).exp() + b * (-noise[1]).exp() + noise.sum();
  }
  Tensor noise;
};
SMP_MODULE(Weighing);

struct Nets {
  Nets() {
    torch::manual_seed(5);
    generator = nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh(),
                               nn::Linear(6, 4));
    critic = nn::Sequential(nn::Linear(4, 1), nn::Tanh());
    generator->to(torch::kDouble);
    critic->to(torch::kDouble);
  }
  nn::Sequential generator{nullptr}, critic{nullptr};
  Weighing weighing;
};

Tensor batch(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<unsigned>(step));
  return torch::randn({4, 4}, generator, torch::kDouble);
}

/// @param fool, weigh  the critic and the weighing, however they are called
template <class Make, class Fool, class Weigh>
Tensor loss_of(const Tensor& x, Make&& make, Fool&& fool, Weigh&& weigh) {
  const auto made = make(x);
  return weigh((made - x).square().mean(), -fool(made).mean());
}

std::vector<double> losses_of_one_process() {
  Nets nets;
  std::vector<Tensor> all;
  for (const auto& module : std::vector<std::shared_ptr<torch::nn::Module>>{
           nets.generator.ptr(), nets.critic.ptr(), nets.weighing.ptr()}) {
    for (const auto& parameter : module->parameters()) all.push_back(parameter);
  }
  torch::optim::SGD optimizer(all, 0.3);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(
        batch(step), [&](const Tensor& x) { return nets.generator->forward(x); },
        [&](const Tensor& x) { return nets.critic->forward(x); },
        [&](const Tensor& a, const Tensor& b) { return nets.weighing->forward(a, b); });
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(SmallModels, RunBesideALargerOneOnAnyNumberOfStages) {
  const auto expected = losses_of_one_process();
  for (const int stages : {1, 2, 3}) {
    for (const bool traced : {true, false}) {
      for (const bool first : {true, false}) {  // whether the large one is placed before the others
        Config config;
        config.plan_cache = "off";
        config.microbatches = 2;
        config.skip_tracing = !traced;
        run_local(stages,
                  [&] {
                    Nets nets;
                    DistributedModel generator(nets.generator), critic(nets.critic);
                    DistributedModel weighing(nets.weighing);
                    if (first) generator.place();
                    DistributedOptimizer g(generator,
                                           torch::optim::SGD(generator.parameters(), 0.3));
                    DistributedOptimizer c(critic, torch::optim::SGD(critic.parameters(), 0.3));
                    DistributedOptimizer w(weighing, torch::optim::SGD(weighing.parameters(), 0.3));
                    auto train = step([&](const Tensor& x) {
                      const auto loss = loss_of(x, generator, critic, weighing);
                      generator.backward(loss);
                      return loss;
                    });
                    for (int i = 0; i < kSteps; ++i) {
                      for (auto* optimizer : {&g, &c, &w}) optimizer->zero_grad();
                      EXPECT_NEAR(train(batch(i)).reduce_mean().item<double>(),
                                  expected[static_cast<std::size_t>(i)], 1e-12);
                      for (auto* optimizer : {&g, &c, &w}) optimizer->step();
                    }
                    EXPECT_EQ(weighing.plan().stage_of(""), 0);
                  },
                  config, {.seed = 1});
      }
    }
  }
}

/// Alone it would leave ranks without work.
TEST(SmallModels, AreRefusedAlone) {
  on_ranks(3, [] {
    Nets nets;
    DistributedModel critic(nets.critic);
    EXPECT_THAT(refusal<ResourceError>([&] { critic.place(); }),
                HasSubstr("3 stages but only 1 piece"));
  });
}

}  // namespace small_models_test
}  // namespace smp
