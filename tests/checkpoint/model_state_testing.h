// checkpoint/model_state_testing.h: a model with buffers, shared and frozen parameters, spread over
// the ranks, and what its state is in plain LibTorch.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "smp/checkpoint.h"
#include "smp/smp.h"

namespace smp::model_state {

using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("linear", linear);
    register_module("norm", norm);
    register_buffer("scale", scale);
    register_buffer("calls", calls);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)).tanh() * scale + x; }
  nn::Linear linear{nn::LinearOptions(4, 4)};
  nn::BatchNorm1d norm{nn::BatchNorm1dOptions(4)};
  Tensor scale = torch::rand({4});
  Tensor calls = torch::tensor({3, 4}, torch::kLong);
};
SMP_MODULE(Block);

/// The head reads the table of the first layer: one tensor under two names.
struct TableImpl : torch::nn::Module {
  TableImpl() : weight(register_parameter("weight", torch::randn({6, 4}))) {}
  Tensor forward(const Tensor& x) { return torch::linear(x, weight.t()); }
  Tensor head(const Tensor& x) { return torch::linear(x, weight); }
  Tensor weight;
};
SMP_MODULE(Table, head);

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(Tensor tied) : weight(register_parameter("weight", std::move(tied))) {
    bias = register_parameter("bias", torch::randn({6}));
    frozen = register_parameter("frozen", torch::randn({6}), false);
  }
  Tensor weight, bias, frozen;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool tied = true) {
    register_module("table", table);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    head = register_module(
        "head", std::make_shared<HeadImpl>(tied ? table->weight : table->weight.detach().clone()));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = table(x);
    for (auto& block : blocks->children()) h = block->as<BlockImpl>()->forward(h);
    return table->head(h) + head->bias * head->frozen;
  }
  Table table;
  torch::nn::ModuleList blocks;
  std::shared_ptr<HeadImpl> head;
};
SMP_MODULE(Net);

inline constexpr std::uint64_t kSeed = 5;

inline Net make_net(std::uint64_t seed = kSeed) {
  torch::manual_seed(seed);
  Net net;
  net->to(torch::kDouble);
  return net;
}

/// All modules on other ranks than their neighbours.
inline void spread(DistributedModelBase& model, int shift = 0) {
  model.set_partition("", 0);
  for (int i = 0; i < 3; ++i) {
    model.set_partition("blocks." + std::to_string(i), (i + 1 + shift) % size());
  }
}

inline StateDict plain_dict(std::uint64_t seed = kSeed) {
  StateDict copies;
  for (const auto& [name, tensor] : state_dict(*make_net(seed)))
    copies.insert(name, tensor.clone());
  return copies;
}

inline void expect_same(const StateDict& ours, const StateDict& expected) {
  ASSERT_EQ(ours.names(), expected.names());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
  }
}

}  // namespace smp::model_state
