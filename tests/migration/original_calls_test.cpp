// Calls of the original that have another form here, one by one: what docs/migrating.md says of
// them.
#include <gmock/gmock.h>
#include <smp/version.h>

#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/precision/grad_scaler.h"

namespace smp {
namespace original_calls_test {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

nn::Sequential make_net() {
  torch::manual_seed(2);
  nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 2));
  net->to(torch::kDouble);
  return net;
}

Tensor batch() {
  torch::manual_seed(8);
  return torch::randn({4, 3}, torch::kDouble);
}

Config of_stages(int stages) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = 2;
  config.plan_cache = "off";
  return config;
}

/// A model on two stages, and an optimizer.
struct Trained {
  Trained() {
    if (pp_size() > 1) model.set_partition("1", 1);
  }
  nn::Sequential net = make_net();
  DistributedModel<nn::Sequential> model{net};
  DistributedOptimizer<torch::optim::Adam> optimizer{model,
                                                     torch::optim::Adam(model.parameters(), 0.1)};
  void step_once() {
    auto train = smp::step([&](const Tensor& x) { model.backward(model(x).pow(2).mean()); });
    train(batch());
  }
};

TEST(OriginalCalls, StateIsAskedByFunctions) {
  EXPECT_EQ(std::string(SMP_VERSION).find_first_not_of("0123456789."), std::string::npos);
  auto config = of_stages(2);
  config.shard_optimizer_state = true;
  config.seed = 5;
  EXPECT_FALSE(is_initialized());
  run_local(
      4,
      [] {
        EXPECT_TRUE(is_initialized());
        EXPECT_EQ(num_microbatches(), 2);
        auto ask = smp::step([] { return std::pair(num_microbatches(), current_microbatch()); });
        EXPECT_THAT(std::get<0>(ask()).outputs(), ElementsAre(2, 2));
        EXPECT_THAT(std::get<1>(ask()).outputs(), ElementsAre(0, 1));
        DistributedModel model(make_net());
        const auto named = model.named_parameters();
        EXPECT_EQ(named.at(2).first, "1.weight") << "an index is the place among the names";
        EXPECT_TRUE(named.at(2).second.is_same(model.parameters().at(2)));
      },
      config);
}

TEST(OriginalCalls, TheWrappedModuleIsTheUsersOwn) {
  on_ranks(2, [] {
    auto net = make_net();
    DistributedModel model(net);
    EXPECT_EQ(model.module().ptr(), net.ptr());
    EXPECT_EQ(&model.base_module(), net.ptr().get());
    EXPECT_EQ(model->size(), 2U) << "wrapped once, however many ranks";
  });
}

/// The mode reaches modules on other ranks.
TEST(OriginalCalls, ModelsTrainAndAreEvaluated) {
  run_local(
      2,
      [] {
        nn::Sequential net(nn::Linear(3, 3), nn::Dropout(0.9));
        net->to(torch::kDouble);
        DistributedModel model(net);
        model.set_partition("1", 1);
        auto drops = smp::step([&](const Tensor& x) { return (model(x) == 0).sum().unsqueeze(0); });
        EXPECT_TRUE(drops(batch()).concat().any().item<bool>());
        model.eval();
        EXPECT_FALSE(model.is_training());
        EXPECT_FALSE(drops(batch()).concat().any().item<bool>());
        model.train();
        EXPECT_TRUE(drops(batch()).concat().any().item<bool>());
      },
      of_stages(2));
}

TEST(OriginalCalls, BackwardTakesSeveralRootsAndKeepsGraphs) {
  auto plain = make_net();
  for (const auto& x : batch().chunk(2)) {
    const auto y = plain->forward(x);
    torch::autograd::backward({y.sum() / 2, y}, {Tensor(), torch::ones_like(y) / 2},
                              /*retain_graph=*/true);
    (y.pow(2).sum() / 2).backward();
  }
  run_local(
      2,
      [&] {
        Trained own;
        auto train = smp::step([&](const Tensor& x) {
          const auto y = own.model(x);
          own.model.backward({y.sum(), y}, {Tensor(), torch::ones_like(y)}, /*retain_graph=*/true);
          own.model.backward(y.pow(2).sum());
        });
        train(batch());
        for (const auto& [name, parameter] : own.model.local_named_parameters()) {
          EXPECT_TRUE(torch::allclose(parameter.grad(), plain->named_parameters()[name].grad(),
                                      1e-12, 1e-14))
              << name;
        }
      },
      of_stages(2));
}

TEST(OriginalCalls, LoadingMayLeaveOutWhatIsMissing) {
  run_local(
      2,
      [] {
        Trained own;
        own.model.place();
        const StateDict part{{"0.weight", torch::ones({4, 3}, torch::kDouble)}};
        EXPECT_THAT(refusal<UsageError>([&] { own.model.load_state_dict(part); }),
                    HasSubstr("1.weight"));
        const auto result = own.model.load_state_dict(part, /*strict=*/false);
        EXPECT_EQ(result.missing_keys.size(), 3U);
        if (rank() == 0) {
          EXPECT_EQ(own.net->parameters()[0].sum().item<double>(), 12);
        }
      },
      of_stages(2));
}

/// What buckets bring is added to `.grad`, which has its own memory.
TEST(OriginalCalls, GradientsAreNoViewsOfBuckets) {
  run_local(
      2,
      [] {
        Trained own;
        own.step_once();
        for (const auto& parameter : own.model.local_parameters()) {
          EXPECT_EQ(parameter.grad().storage().nbytes(), parameter.grad().nbytes());
          EXPECT_FALSE(parameter.grad().is_view());
        }
      },
      of_stages(1));
}

struct BaseImpl : torch::nn::Module {
  BaseImpl() : inner(register_module("inner", nn::Linear(3, 3))) { to(torch::kDouble); }
  virtual Tensor forward(const Tensor& x) { return inner(x); }
  nn::Linear inner;
};
struct DerivedImpl : BaseImpl {
  Tensor forward(const Tensor& x) override { return BaseImpl::forward(x) + x; }
};
SMP_MODULE(Derived);

TEST(OriginalCalls, AModuleMayCallTheForwardOfItsBase) {
  torch::manual_seed(3);
  Derived plain;
  const auto expected = plain->inner(batch()) + batch();
  run_local(
      2,
      [&] {
        torch::manual_seed(3);
        nn::Sequential net;
        net->push_back(Derived());
        DistributedModel model(net);
        model.set_partition("0", 1);
        auto run = smp::step([&](const Tensor& x) { return model(x); });
        EXPECT_TRUE(torch::allclose(run(batch()).concat(), expected, 1e-12, 1e-14));
      },
      of_stages(2));
}

TEST(OriginalCalls, AScalerMayKeepItsFactor) {
  run_local(
      2,
      [] {
        Trained own;
        GradScaler scaler({.init_scale = 128, .growth_interval = 1000000});
        auto train = smp::step(
            [&](const Tensor& x) { own.model.backward(scaler.scale(own.model(x).sum())); });
        for (int i = 0; i < 20; ++i) {
          train(batch());
          EXPECT_TRUE(scaler.step(own.optimizer));
          scaler.update();
          own.optimizer.zero_grad();
        }
        EXPECT_EQ(scaler.get_scale(), 128);
      },
      of_stages(2));
}

/// {"init_scale": 2**32, "scale_factor": 2, "scale_window": 3}
TEST(OriginalCalls, ScalersTakeTheOriginalsNumbers) {
  EXPECT_EQ(GradScaler().get_scale(), 65536);
  run_local(
      1,
      [] {
        nn::Linear net(1, 1);
        DistributedModel model(net);
        model.place();
        DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
        GradScaler scaler({.init_scale = 4294967296., .growth_factor = 2, .growth_interval = 3});
        const auto step = [&](float gradient) {
          net->weight.mutable_grad() = torch::full({1, 1}, gradient);
          const bool overflow = !scaler.step(optimizer);
          scaler.update();
          return overflow;
        };
        EXPECT_TRUE(step(INFINITY));
        EXPECT_EQ(scaler.get_scale(), 2147483648.);
        for (int i = 0; i < 3; ++i) EXPECT_FALSE(step(1));
        EXPECT_EQ(scaler.get_scale(), 4294967296.) << "after scale_window good steps";
      },
      of_stages(1));
}

TEST(OriginalCalls, GradientsBecomeZeroOrUndefined) {
  for (const bool shard : {false, true}) {
    auto config = of_stages(2);
    config.shard_optimizer_state = shard;
    run_local(
        4,
        [] {
          Trained own;
          own.step_once();
          own.optimizer.step();
          own.optimizer.zero_grad(/*set_to_none=*/false);
          for (const auto& parameter : own.model.local_parameters()) {
            if (!parameter.grad().defined()) continue;  // another replica has it
            EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
          }
          own.step_once();
          own.optimizer.zero_grad(/*set_to_none=*/true);
          for (const auto& parameter : own.model.local_parameters()) {
            EXPECT_FALSE(parameter.grad().defined());
          }
        },
        config);
  }
}

TEST(OriginalCalls, StateOfAnOptimizerIsOfThisRanksParameters) {
  run_local(
      2,
      [] {
        Trained own;
        own.step_once();
        own.optimizer.step();
        EXPECT_EQ(own.optimizer->state().size(), own.model.local_parameters().size());
        EXPECT_EQ(own.model.local_parameters().size(), 2U);
        for (const auto& parameter : own.model.local_parameters()) {
          EXPECT_TRUE(own.optimizer->state().count(parameter.unsafeGetTensorImpl()) > 0);
        }
      },
      of_stages(2));
}

TEST(OriginalCalls, StepsWithoutGradientsRunForwardOnly) {
  for (const char* pipeline : {"interleaved", "simple", "1f1b"}) {
    auto config = of_stages(2);
    config.pipeline = pipeline;
    run_local(
        2,
        [] {
          Trained own;
          const torch::NoGradGuard no_grad;
          auto test = smp::step([&](const Tensor& x) { return own.model(x); });
          EXPECT_FALSE(test(batch()).concat().requires_grad());
          for (const auto& parameter : own.model.local_parameters()) {
            EXPECT_FALSE(parameter.grad().defined());
          }
        },
        config);
  }
}

/// A rank that is slow keeps its group, and no other rank.
TEST(OriginalCalls, BarriersAreOfAnyGroup) {
  auto config = of_stages(2);
  run_local(
      8,
      [] {
        for (const Group which : {Group::kMp, Group::kPp, Group::kTp, Group::kDp, Group::kRdp}) {
          const auto ranks = group(which);
          if (rank() == ranks.front()) {
            for (const int other : ranks) {
              if (other != rank()) send(1, other);
            }
          }
          barrier(which);
          const bool told = rank() == ranks.front() || try_recv_from<int>(ranks.front(), 0);
          EXPECT_TRUE(told) << "what was sent before has come";
        }
      },
      config);
}

}  // namespace original_calls_test
}  // namespace smp
