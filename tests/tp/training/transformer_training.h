// tp/training/transformer_training.h: a stack of transformer layers with two sequences, trained by
// plain LibTorch in one process and on ranks, and compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/layer_comparison.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace transformer_training {

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 8, kQueries = 3, kKeys = 4, kLayers = 2;

inline AttentionLayerOptions attention(bool before) {
  auto options = attention_options();
  options.cross_attention = true;
  options.causal_mask_size = kQueries;
  options.pre_layernorm = before;
  options.post_layernorm = !before;
  return options;
}

inline TransformerOutputLayerOptions output(bool before) {
  auto options = output_options();
  options.pre_layernorm = before;
  options.post_layernorm = !before;
  return options;
}

inline TransformerState state_of(const at::Tensor& x) {
  return {x.narrow(1, 0, kQueries), {}, x.narrow(1, kQueries, kKeys), {}};
}

inline at::Tensor loss_of(const at::Tensor& hidden) { return (hidden * hidden.sin()).mean(); }

struct PlainStackImpl : torch::nn::Module {
  explicit PlainStackImpl(bool before) {
    for (std::int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       PlainLayer(attention(before), output(before))));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    auto state = state_of(x);
    for (auto& layer : layers) state = layer->forward(state);
    return loss_of(state.hidden);
  }
  std::vector<PlainLayer> layers;
};
TORCH_MODULE(PlainStack);

struct SlicedStackImpl : torch::nn::Module {
  explicit SlicedStackImpl(bool before)
      : layers(register_module(
            "layers", nn::DistributedTransformer(attention(before), output(before), kLayers))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return loss_of(layers(state_of(x)).hidden); }
  nn::DistributedTransformer layers;
};
SMP_MODULE(SlicedStack);

inline at::Tensor rows_of(int step) {
  return numbers(1, {kRows, kQueries + kKeys, kHidden})[0] + 0.1 * step;
}

inline torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.3).momentum(0.9));
}

inline PlainStack train_plain(bool before) {
  torch::manual_seed(7);
  PlainStack net(before);
  net->to(torch::kDouble);
  auto optimizer = sgd(net->parameters());
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    net->forward(rows_of(s)).backward();
    optimizer.step();
  }
  return net;
}

inline void train_and_compare(const PlainStack& plain, bool before) {
  torch::manual_seed(7);
  SlicedStack net(before);
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, sgd(net->parameters()));
  auto train = step([&](const at::Tensor& x) { model.backward(model(x)); });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    const auto shard = data_shard();
    train(rows_of(s).chunk(shard.count)[static_cast<std::size_t>(shard.index)]);
    optimizer.step();
  }
  const auto values = model.state_dict();
  if (rank() != 0) return;
  EXPECT_EQ(values.size(), plain->named_parameters().size());
  for (const auto& item : plain->named_parameters()) {
    expect_near(values.at("layers." + item.key()), item.value().detach(), 1e-12, item.key());
  }
}

}  // namespace transformer_training
}  // namespace smp::tp
