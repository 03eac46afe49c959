// Modules built under smp::delay_param_initialization take no memory, and get the bits that they
// would have had.
#include "smp/delayed_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "deferred/delayed_build.h"

namespace smp::deferred {
namespace {

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

/// With the seed that it had: two networks that are to begin alike, and numbers after the scope.
TEST(DelayedInit, FollowsGeneratorsThatAreSeededAsTheyWere) {
  const auto build = custom([](Custom& self) {
    torch::manual_seed(11);
    self.register_parameter("online", torch::randn({30}));
    self.register_parameter("online_tail", torch::randn({5}));  // few: its draws are not counted
    torch::manual_seed(11);
    self.register_parameter("target", torch::randn({30}));
    self.register_parameter("target_tail", torch::randn({5}));
    torch::manual_seed(11);
  });
  expect_same_bits(build);
  const auto eager = build();
  const auto after = torch::randn({5});
  const auto ours = build_delayed(build);
  EXPECT_TRUE(torch::equal(torch::randn({5}), after));
  materialise(*ours);
  const auto parameters = ours->named_parameters();
  EXPECT_TRUE(torch::equal(parameters["online"], parameters["target"]));
  EXPECT_TRUE(torch::equal(parameters["online_tail"], parameters["target_tail"]));
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

}  // namespace
}  // namespace smp::deferred
