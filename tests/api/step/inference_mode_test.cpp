// Steps under c10::InferenceMode: what LibTorch allows there in one process works in bodies too,
// and training goes on after it.
#include <c10/core/InferenceMode.h>
#include <torch/types.h>

#include <optional>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace inference_mode_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

TEST(InferenceMode, ABodyWritesWhatWasMadeInTheMode) {
  on_ranks(2, [] {
    FarModel far;
    const c10::InferenceMode mode;
    auto sum = torch::zeros({2}, torch::kDouble);
    auto evaluate = smp::step([&](Tensor x) { sum += far.model(x).sum(0); });
    evaluate(rows(4).clone());
    EXPECT_EQ(sum.abs().sum().item<double>() != 0, pp_rank() == 0);
  });
}

TEST(InferenceMode, ABodyWritesItsRows) {
  on_ranks(2, [] {
    FarModel far;
    const c10::InferenceMode mode;
    auto twice = smp::step([&](Tensor x) {
      x.mul_(2);
      return std::pair(x, far.model(x));
    });
    const auto [x, y] = twice(rows(4).clone());
    EXPECT_TRUE(at::equal(x.concat(), rows(4) * 2));
    EXPECT_EQ(y.concat().sizes(), at::IntArrayRef({4, 2}));
  });
}

TEST(InferenceMode, WholeArgumentsThatWereMadeInTheModeArePassed) {
  on_ranks(2, [] {
    const c10::InferenceMode mode;
    StepOptions options;
    options.non_split = {1};
    auto look = smp::step([](Tensor x, Tensor whole) { return x * whole; }, options);
    const auto whole = torch::tensor({1., 2., 3.}, torch::kDouble);
    EXPECT_TRUE(at::equal(look(rows(4), whole).concat(), rows(4) * whole));
    const auto complex = torch::complex(whole, whole);
    EXPECT_TRUE(at::equal(look(rows(4), complex.conj()).concat(), rows(4) * complex.conj()));
  });
}

TEST(InferenceMode, AWholeArgumentIsNotChangedInPlace) {
  on_ranks(2, [] {
    const c10::InferenceMode mode;
    StepOptions options;
    options.non_split = {1};
    auto change = smp::step([](Tensor, Tensor whole) { whole.add_(1); }, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { change(rows(4), rows(3).clone()); }),
                AllOf(HasSubstr("argument 1"), HasSubstr("in place"), HasSubstr("clone it")));
  });
}

TEST(InferenceMode, RowsThatOverlapArePassed) {
  on_ranks(2, [] {
    const c10::InferenceMode mode;
    auto look = smp::step([](Tensor x) { return x + 1; });
    const auto same = rows(1).clone().expand({4, 3});
    EXPECT_TRUE(at::equal(look(same).concat(), same + 1));
  });
}

struct NormImpl : torch::nn::Module {
  NormImpl() { to(torch::kDouble); }
  Tensor forward(Tensor x) { return instance(x); }
  torch::nn::InstanceNorm1d instance{register_module(
      "instance",
      torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(2).track_running_stats(true)))};
};
SMP_MODULE(Norm);

/// Running statistics after a step in training mode that computes no gradients.
Tensor statistics_after(bool in_step, bool in_body) {
  Norm norm;
  DistributedModel<Norm> model(norm);
  auto run = smp::step([&](Tensor x) {
    std::optional<c10::InferenceMode> mode;
    if (in_body) mode.emplace();
    return model(x);
  });
  const at::NoGradGuard no_grad;
  std::optional<c10::InferenceMode> mode;
  if (in_step) mode.emplace();
  run(rows(4, 6).view({4, 2, 3}));
  return norm->instance->running_mean.clone();
}

TEST(InferenceMode, RunningStatisticsAreThoseOfOtherStepsWithoutGradients) {
  on_ranks(1, [] {
    const auto plain = statistics_after(false, false);
    EXPECT_NE(plain.abs().sum().item<double>(), 0);
    EXPECT_TRUE(at::equal(statistics_after(true, false), plain)) << "around the step";
    EXPECT_TRUE(at::equal(statistics_after(false, true), plain)) << "in its body";
  });
}

/// The weight after a step of training, with an evaluation before it.
Tensor weight_after(bool in_mode) {
  FarModel far;
  DistributedOptimizer optimizer(
      far.model, torch::optim::SGD(far.net->parameters(), torch::optim::SGDOptions(0.1)));
  auto evaluate = smp::step([&](Tensor x) { return far.model(x); });
  auto train = smp::step([&](Tensor x) { far.model.backward(far.model(x).sum()); });
  {
    const at::NoGradGuard no_grad;
    std::optional<c10::InferenceMode> mode;
    if (in_mode) mode.emplace();
    evaluate(rows(4).clone());
  }
  train(rows(4));
  optimizer.step();
  return far.model.state_dict(kAllPpRanks).at("far.linear.weight");
}

TEST(InferenceMode, TrainingGoesOnAfterAFirstStepInTheMode) {
  on_ranks(2, [] { EXPECT_TRUE(at::equal(weight_after(true), weight_after(false))); });
}

struct BufferedImpl : torch::nn::Module {
  BufferedImpl() {
    factor = register_buffer("factor", torch::full({1}, 3.0));
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) { return linear(x) * factor; }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(3, 2))};
  Tensor factor;
};
SMP_MODULE(Buffered);

struct BufferedTopImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return far(near(x).repeat({1, 2}).narrow(1, 0, 3)) + near->factor; }
  Buffered near{register_module("near", Buffered())};
  Buffered far{register_module("far", Buffered())};
};
SMP_MODULE(BufferedTop);

TEST(InferenceMode, AProgramThatIsInTheModeFromItsStartEvaluates) {
  on_ranks(2, [] {
    const c10::InferenceMode mode;
    torch::manual_seed(3);
    BufferedTop net, plain;
    load_state_dict(*plain, smp::state_dict(*net));
    DistributedModel<BufferedTop> model(net);
    model.set_partition("near", 1);
    model.set_partition("far", 0);
    auto evaluate = smp::step([&](Tensor x) { return model(x); });
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(evaluate(rows(4)).concat(), plain(rows(4))));
    }
    EXPECT_TRUE(at::equal(model.state_dict(kAllPpRanks).at("near.factor"), plain->near->factor));
  });
}

TEST(InferenceMode, DistributedModulesMayBeBuiltInTheMode) {
  Config config;
  config.tensor_parallel_degree = 2;
  config.plan_cache = "off";
  run_local(
      2,
      [] {
        const c10::InferenceMode mode;
        torch::manual_seed(3);
        nn::DistributedLinear sliced(4, 6);
        torch::manual_seed(3);
        nn::Linear whole(4, 6);
        DistributedModel<nn::DistributedLinear> model(sliced);
        auto evaluate = smp::step([&](Tensor x) { return model(x); });
        const auto x = torch::ones({3, 4}) * (rank() + 1);
        EXPECT_TRUE(at::allclose(evaluate(x).concat(), whole(x)));
      },
      config);
}

}  // namespace inference_mode_test
}  // namespace smp
