// Modules built under smp::delay_param_initialization take no memory, and get the bits that they
// would have had.
#include "smp/delayed_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "module/delayed_tensors.h"
#include "module/meta_scope.h"
#include "smp/error.h"

namespace smp::module {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

Tensors tensors_of(const nn::Module& module) {
  Tensors tensors;
  for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : all) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

/// What a rank does that owns `owned`.
void materialise(
    const nn::Module& module,
    const std::function<bool(const std::string&)>& owned = [](auto&) { return true; }) {
  Materialiser materialiser;
  const auto tensors = tensors_of(module);
  for (const auto& [name, tensor] : tensors) materialiser.announce(name, tensor);
  for (const auto& [name, tensor] : tensors) {
    if (owned(name)) materialiser.fill(tensor);
  }
}

void expect_equal(const nn::Module& ours, const nn::Module& eager) {
  const auto a = tensors_of(ours), b = tensors_of(eager);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [name, tensor] = a[i];
    EXPECT_EQ(name, b[i].first);
    if (is_delayed(tensor)) continue;
    EXPECT_TRUE(tensor.is_cpu() && torch::equal(tensor, b[i].second)) << name;
    EXPECT_EQ(tensor.dtype(), b[i].second.dtype()) << name;
    EXPECT_EQ(tensor.strides(), b[i].second.strides()) << name;
    EXPECT_EQ(tensor.requires_grad(), b[i].second.requires_grad()) << name;
    EXPECT_EQ(tensor.is_leaf(), b[i].second.is_leaf()) << name;
  }
}

template <class Build>
auto build_delayed(const Build& build, InitOrder order = InitOrder::kAsWritten) {
  delay_param_initialization delay(order);
  return build();
}

/// Builds under the scope and without it from one seed; bits and generators must agree, whatever
/// part of the model a rank fills, and with which numbers the thread goes on.
template <class Build>
void expect_same_bits(const Build& build, bool all_delayed = true) {
  torch::manual_seed(11);
  torch::rand({5});
  const auto eager = build();
  const auto state_after = generator_state();
  const auto next = torch::rand({3});
  for (const int parity : {-1, 0, 1}) {
    torch::manual_seed(11);
    torch::rand({5});
    const auto ours = build_delayed(build);
    EXPECT_TRUE(torch::equal(generator_state(), state_after));
    EXPECT_TRUE(torch::equal(torch::rand({3}), next));
    if (all_delayed) {
      for (const auto& [name, tensor] : tensors_of(*ours)) EXPECT_TRUE(is_delayed(tensor)) << name;
    }
    int index = 0;
    materialise(*ours, [&](const auto&) { return parity < 0 || index++ % 2 == parity; });
    expect_equal(*ours, *eager);
  }
}

struct Custom : nn::Module {
  explicit Custom(const std::function<void(Custom&)>& build) { build(*this); }
  using nn::Module::register_buffer;
  using nn::Module::register_module;
  using nn::Module::register_parameter;
  std::vector<Tensor> members;
};

/// A module by the constructor's body alone.
auto custom(std::function<void(Custom&)> body) {
  return [body] { return std::make_shared<Custom>(body); };
}

TEST(DelayedInit, GivesEveryKindOfLayerItsBits) {
  expect_same_bits([] {
    return nn::Sequential(
        nn::Linear(40, 30), nn::LayerNorm(nn::LayerNormOptions({30})),
        nn::Embedding(nn::EmbeddingOptions(50, 20).padding_idx(3)), nn::BatchNorm1d(10),
        nn::LSTM(nn::LSTMOptions(7, 9).num_layers(2).bidirectional(true)), nn::GRUCell(5, 6),
        nn::MultiheadAttention(16, 4), nn::Conv2d(3, 8, 3), nn::Bilinear(3, 4, 5), nn::PReLU(),
        nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
        nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(16, 2)),
        nn::EmbeddingBag(7, 3), nn::Linear(3, 1));
  });
}

TEST(DelayedInit, FollowsTheFunctionsOfInit) {
  using namespace nn::init;
  for (const auto& fill : std::vector<std::function<void(Tensor)>>{
           [](Tensor t) { normal_(t, 1, 2); }, [](Tensor t) { uniform_(t, -1, 1); },
           [](Tensor t) { xavier_normal_(t); }, [](Tensor t) { kaiming_normal_(t); },
           [](Tensor t) { orthogonal_(t); }, [](Tensor t) { eye_(t); },
           [](Tensor t) { sparse_(t, 0.3); }, [](Tensor t) { constant_(t, 3); },
           [](Tensor t) {
             torch::NoGradGuard no_grad;
             t.bernoulli_(0.3);
           },
           [](Tensor t) {
             torch::NoGradGuard no_grad;
             t.exponential_().mul_(2).add_(1);
           },
           [](Tensor t) {
             torch::NoGradGuard no_grad;
             t.t().normal_();
           },
           [](Tensor t) {
             torch::NoGradGuard no_grad;
             t[1].normal_();
             t[0].zero_();
           }}) {
    expect_same_bits([&] {
      nn::Sequential net(nn::Linear(21, 20), nn::Linear(20, 2));
      fill(net->ptr(0)->as<nn::LinearImpl>()->weight);
      return net;
    });
  }
}

TEST(DelayedInit, FollowsASecondInitialisationOfTheWholeModel) {
  expect_same_bits([] {
    nn::Sequential net(nn::Linear(20, 20), nn::LayerNorm(nn::LayerNormOptions({20})),
                       nn::Linear(20, 7));
    torch::NoGradGuard no_grad;
    net->apply([](nn::Module& module) {
      if (auto* linear = module.as<nn::LinearImpl>()) {
        linear->weight.normal_(0, 0.02);
        linear->bias.zero_();
      }
    });
    return net;
  });
}

TEST(DelayedInit, WorksInOtherTypes) {
  for (const auto type : {torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    expect_same_bits([&] {
      nn::Sequential net(nn::Linear(21, 20), nn::BatchNorm1d(3));
      net->to(type);
      net->push_back(nn::Linear(20, 3));
      return net;
    });
    expect_same_bits(custom([&](Custom& self) {
      self.register_parameter("wide", torch::randn({5, 7}, type));
      self.register_parameter("flat", torch::rand({90}, type));
    }));
  }
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto build = [] { return nn::Linear(17, 3); };
  torch::manual_seed(1);
  const auto eager = build();
  torch::manual_seed(1);
  const auto ours = build_delayed(build);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  materialise(*ours);
  expect_equal(*ours, *eager);
}

TEST(DelayedInit, FollowsBuffersThatAreComputed) {
  expect_same_bits(custom([](Custom& self) {
    auto table = torch::zeros({20, 6});
    const auto position = torch::arange(20, torch::kFloat).unsqueeze(1);
    const auto factor = torch::exp(torch::arange(0, 6, 2, torch::kFloat) * -0.7);
    using torch::indexing::None;
    using torch::indexing::Slice;
    table.index_put_({Slice(), Slice(0, None, 2)}, torch::sin(position * factor));
    table.index_put_({Slice(), Slice(1, None, 2)}, torch::cos(position * factor));
    self.register_buffer("table", table);
    self.register_buffer("mask", torch::ones({4, 4}, torch::kBool).triu(1));
    self.register_buffer("order", torch::randperm(10));
    for (int i = 0; i < 3000; ++i) table[i % 20][i % 6].add_(1);
  }));
}

TEST(DelayedInit, TakesDataAtOnce) {
  std::vector<float> data{1, 2, 3, 4};
  expect_same_bits(custom([&](Custom& self) {
                     self.register_buffer("list", torch::tensor({{1, 2}, {3, 4}}));
                     self.register_buffer("values", torch::tensor(std::vector<double>{5, 6}));
                     self.register_buffer("blob", torch::from_blob(data.data(), {4}).clone());
                     auto weight = self.register_parameter("weight", torch::randn({3, 4}));
                     auto passing = data;
                     torch::NoGradGuard no_grad;
                     weight[1].copy_(torch::from_blob(passing.data(), {4}));
                     weight.add_(torch::tensor({1, 1, 0, 0}));
                   }),
                   /*all_delayed=*/false);
}

TEST(DelayedInit, RespectsANamedDevice) {
  const auto build = custom([](Custom& self) {
    self.register_parameter("before", torch::randn({20}));
    self.register_buffer("here", torch::rand({20}, torch::device(torch::kCPU)));
    self.register_parameter("after", torch::randn({20}));
  });
  expect_same_bits(build, /*all_delayed=*/false);
  const auto ours = build_delayed(build);
  EXPECT_TRUE(ours->named_buffers()["here"].is_cpu());
  EXPECT_TRUE(is_delayed(ours->named_parameters()["after"]));
}

TEST(DelayedInit, ComputesWhatAConstructorReads) {
  expect_same_bits(custom([](Custom& self) {
    const auto rates = torch::linspace(0, 0.5, 6);
    const auto first = torch::randn({30});
    for (int i = 0; i < 6; ++i) {
      self.register_module(std::to_string(i),
                           nn::Linear(4 + static_cast<int>(10 * rates[i].item<float>()), 3));
    }
    if (first.sum().item<float>() > 0 || torch::equal(first, first)) {
      self.register_parameter("more", torch::rand({3}) + first.max());
    }
  }));
}

TEST(DelayedInit, FollowsGeneratorsThatAConstructorSeeds) {
  expect_same_bits(custom([](Custom& self) {
    self.register_parameter("a", torch::randn({30}));
    torch::manual_seed(5);
    self.register_parameter("b", torch::randn({30}));
    auto own = at::make_generator<at::CPUGeneratorImpl>(3);
    self.register_parameter("c", torch::randn({30}, own, torch::TensorOptions()));
    self.register_parameter("d", torch::randn({3}, own, torch::TensorOptions()));
    self.register_parameter("e", torch::randn({30}));
  }));
}

TEST(DelayedInit, KeepsAliasesAndTiedWeights) {
  const auto build = custom([](Custom& self) {
    const auto weight = self.register_parameter("weight", torch::randn({6, 4}));
    self.register_buffer("rows", weight.detach().slice(0, 1, 3));
    self.register_module("tied", std::make_shared<Custom>([&](Custom& child) {
                           child.register_parameter("weight", weight);
                         }));
    self.register_buffer("copy", weight.detach().clone());
    torch::NoGradGuard no_grad;
    weight.mul_(2);
  });
  expect_same_bits(build);
  const auto ours = build_delayed(build);
  materialise(*ours);
  const auto parameters = ours->named_parameters();
  EXPECT_TRUE(parameters["weight"].is_same(parameters["tied.weight"]));
  EXPECT_TRUE(ours->named_buffers()["rows"].is_alias_of(parameters["weight"]));
  EXPECT_FALSE(ours->named_buffers()["copy"].is_alias_of(parameters["weight"]));
}

TEST(DelayedInit, FollowsAForwardInAConstructor) {
  expect_same_bits(custom([](Custom& self) {
    nn::Sequential body(nn::Conv2d(1, 4, 3), nn::ReLU(), nn::Flatten(), nn::Dropout(0.5));
    const auto width = body->forward(torch::zeros({1, 1, 8, 8})).size(1);
    self.register_module("body", body);
    self.register_module("head", nn::Linear(width, 3));
  }));
}

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
    if (base::operator_hook() != nullptr) inner.emplace();
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
}  // namespace smp::module
