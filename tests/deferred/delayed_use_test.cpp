// Delayed modules between the end of their scope and their use: nested scopes, changes, refusals,
// other orders of filling.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <sstream>

#include "deferred/delayed_build.h"
#include "deferred/meta_scope.h"

namespace smp::deferred {
namespace {

TEST(DelayedInit, PartsMayBeBuiltOutside) {
  torch::manual_seed(4);
  nn::Sequential eager(nn::Linear(9, 9));
  eager->push_back(nn::Linear(9, 9));
  eager->push_back(nn::Linear(9, 9));
  torch::manual_seed(4);
  nn::Sequential ours(build_delayed([] { return nn::Linear(9, 9); }));
  ours->push_back(nn::Linear(9, 9));
  ours->push_back(build_delayed([] { return nn::Linear(9, 9); }));
  materialise(*ours);
  expect_equal(*ours, *eager);
}

TEST(DelayedInit, ScopesNest) {
  expect_same_bits([] {
    nn::Sequential net(nn::Linear(9, 9));
    std::optional<delay_param_initialization> inner;
    if (operator_hook().get() != nullptr) inner.emplace();
    net->push_back(nn::Linear(9, 9));
    inner.reset();
    net->push_back(nn::Linear(9, 9));
    return net;
  });
}

TEST(DelayedInit, MayBeChangedBeforePlacement) {
  const auto change = [](nn::Sequential& net) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.normal_().mul_(0.02);
    net->to(torch::kDouble);
    net->parameters()[0].requires_grad_(false);
    net->ptr(0)->as<nn::LinearImpl>()->bias.copy_(torch::ones({20}));
  };
  torch::manual_seed(4);
  nn::Sequential eager(nn::Linear(20, 20), nn::BatchNorm1d(20));
  change(eager);
  const auto state_after = generator_state();
  torch::manual_seed(4);
  auto ours = build_delayed([] { return nn::Sequential(nn::Linear(20, 20), nn::BatchNorm1d(20)); });
  change(ours);
  EXPECT_TRUE(torch::equal(generator_state(), state_after));
  EXPECT_TRUE(is_delayed(*ours));
  materialise(*ours);
  expect_equal(*ours, *eager);
}

TEST(DelayedInit, KeepsTheIdentityOfParameters) {
  auto linear = build_delayed([] { return nn::Linear(3, 3); });
  const auto weight = linear->weight;
  const auto* identity = weight.unsafeGetTensorImpl();
  materialise(*linear);
  EXPECT_EQ(linear->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(weight.is_cpu());
  linear(torch::ones({2, 3})).sum().backward();
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
}

std::string refusal(const std::function<void()>& use) {
  try {
    use();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(DelayedInit, RefusesUseBeforePlacement) {
  auto linear = build_delayed([] { return nn::Linear(3, 3); });
  for (const auto& use : std::vector<std::function<void()>>{
           [&] {
             linear(torch::ones({2, 3}));
           },
           [&] { linear->weight.sum().item<float>(); },
           [&] { linear->weight.accessor<float, 2>(); }, [&] { linear->weight.data_ptr<float>(); },
           [&] { std::ostringstream() << linear->weight; },
           [&] { torch::equal(linear->weight, linear->weight); },
           [&] {
             torch::ones({3, 3}).add_(linear->weight);
           }}) {
    EXPECT_THAT(refusal(use), testing::HasSubstr("smp::delay_param_initialization"));
  }
}

TEST(DelayedInit, GivesUnregisteredTensorsTheirValuesWhenUsed) {
  const auto build = custom([](Custom& self) {
    self.members.push_back(torch::randn({20}));
    self.register_parameter("weight", torch::randn({20}));
    self.members.push_back(self.parameters()[0].view({4, 5}).detach());
  });
  torch::manual_seed(2);
  const auto eager = build();
  torch::manual_seed(2);
  const auto ours = build_delayed(build);
  materialise(*ours);
  EXPECT_TRUE(torch::equal(ours->members[0] + 1, eager->members[0] + 1));
  EXPECT_FALSE(is_delayed(ours->members[0]));
  torch::NoGradGuard no_grad;
  ours->parameters()[0].fill_(7);
  EXPECT_TRUE(torch::equal(ours->members[1] * 1, torch::full({4, 5}, 7.0f)));
}

TEST(DelayedInit, ByPathDoesNotDependOnWhatElseIsFilled) {
  const auto build = [] {
    nn::Sequential net(nn::Linear(20, 20), nn::Linear(20, 20), nn::LSTM(4, 5));
    torch::NoGradGuard no_grad;
    net->ptr(1)->as<nn::LinearImpl>()->weight.copy_(net->ptr(0)->as<nn::LinearImpl>()->weight);
    return net;
  };
  const auto fill = [&](const std::function<bool(const std::string&)>& owned) {
    torch::manual_seed(6);
    auto net = build_delayed(build, InitOrder::kByPath);
    materialise(*net, owned);
    return net;
  };
  const auto whole = fill([](auto&) { return true; });
  expect_equal(*fill([](auto& name) { return name[0] != '0'; }), *whole);
  const auto weights = whole->named_parameters();
  EXPECT_TRUE(torch::equal(weights["0.weight"], weights["1.weight"]));
  EXPECT_FALSE(torch::equal(weights["0.bias"], weights["1.bias"]));
  EXPECT_NEAR(weights["0.weight"].abs().max().item<float>(), 1 / std::sqrt(20.0), 1e-2);
  const auto other = build_delayed(build, InitOrder::kByPath);
  materialise(*other);
  EXPECT_FALSE(torch::equal(other->parameters()[0], whole->parameters()[0]));
}

TEST(DelayedInit, ByPathAParameterIsWhatAConstructorReadOfIt) {
  double norm = 0;
  const auto net = build_delayed(custom([&norm](Custom& self) {
                                   const auto weight =
                                       self.register_parameter("weight", torch::randn({64}));
                                   norm = weight.norm().item<double>();
                                   self.register_parameter("other", torch::randn({64}));
                                 }),
                                 InitOrder::kByPath);
  materialise(*net);
  EXPECT_EQ(net->parameters()[0].norm().item<double>(), norm);
  EXPECT_FALSE(torch::equal(net->parameters()[0], net->parameters()[1]));
}

/// Of those that nobody registered, and that are filled behind the scope.
TEST(DelayedInit, ByPathTwoTensorsWithoutPathsDiffer) {
  const auto net = build_delayed(custom([](Custom& self) {
                                   self.members = {torch::empty({20}), torch::empty({20})};
                                   self.register_parameter("weight", torch::randn({3}));
                                 }),
                                 InitOrder::kByPath);
  for (auto& member : net->members) member.normal_();
  materialise(*net);
  EXPECT_FALSE(torch::equal(net->members[0] + 1, net->members[1] + 1));
}

TEST(DelayedInit, LeavesTracedModelsDelayed) {
  torch::manual_seed(1);
  auto net = build_delayed([] { return nn::Sequential(nn::Linear(3, 3), nn::BatchNorm1d(3)); });
  {
    MetaScope meta;
    const auto output = net->forward(torch::empty({5, 3}));
    EXPECT_TRUE(output.is_meta());
    EXPECT_TRUE(output.requires_grad());
  }
  EXPECT_TRUE(is_delayed(*net));
  materialise(*net);
  EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 0);
}

TEST(DelayedInit, TakesNoMemoryForElevenBillionParameters) {
  torch::manual_seed(1);
  const auto net = build_delayed([] {
    nn::Sequential layers;
    for (int i = 0; i < 11; ++i) layers->push_back(nn::Linear(40000, 25000));
    return layers;
  });
  materialise(*net, [](auto& name) { return name == "7.bias"; });
  EXPECT_FALSE(is_delayed(net->named_parameters()["7.bias"]));
}

}  // namespace
}  // namespace smp::deferred
