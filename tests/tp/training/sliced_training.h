// tp/training/sliced_training.h: one model of plain LibTorch layers and of distributed ones,
// trained on the same samples in one process and on ranks that each read their own, and compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "api/replicas/replicas.h"
#include "smp/smp.h"
#include "smp/tp.h"

namespace smp::tp {

struct PlainLayers {
  using Linear = torch::nn::Linear;
  using Embedding = torch::nn::Embedding;
  using Whole = torch::nn::Linear;
};
struct SlicedLayers {
  using Linear = nn::DistributedLinear;
  using Embedding = nn::DistributedEmbedding;
  using Whole = nn::Linear;
};

/// tokens [B, 5] -> [B, 4]; `first` runs three times in a row, `whole` is no distributed module.
template <class Layers>
struct BagOfWordsImpl : torch::nn::Module {
  explicit BagOfWordsImpl(bool sparse = false, at::ScalarType dtype = at::kDouble)
      : embed(register_module("embed", typename Layers::Embedding(
                                           torch::nn::EmbeddingOptions(13, 8).sparse(sparse)))),
        first(register_module("first", typename Layers::Linear(8, 8))),
        whole(register_module("whole", typename Layers::Whole(8, 12))),
        second(register_module(
            "second", typename Layers::Linear(torch::nn::LinearOptions(12, 4).bias(false)))) {
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = embed(tokens);  // [B, 5, 8]
    x = torch::tanh(first(x)) + x;
    x = first(x).mean(1);
    x = torch::tanh(whole(torch::tanh(first(x))));
    return second(x);
  }
  typename Layers::Embedding embed;
  typename Layers::Linear first;
  typename Layers::Whole whole;
  typename Layers::Linear second;
};

using SlicedBagImpl = BagOfWordsImpl<SlicedLayers>;
SMP_MODULE(SlicedBag);

/// Dimension along which a parameter is sliced.
inline const std::map<std::string, int> kSliced{
    {"embed.weight", 1}, {"first.weight", 1}, {"second.weight", 1}};

struct Samples {
  at::Tensor tokens, targets;
};

constexpr int kSteps = 4;
constexpr int kMicrobatches = 3;
constexpr int kRows = 6;  ///< of one batch

/// @param replica  the number of the batch: of a rank, or with a prescaled batch of a TP_GROUP
inline Samples samples(int step, int replica) {
  const auto n = at::arange(kRows * 5, at::kLong);
  const auto seed = 31 * step + 7 * replica;
  const auto m = at::arange(kRows * 4, at::kDouble);
  return {at::remainder(n * n + 3 * n + seed, 13).view({kRows, 5}),
          at::sin(m * 0.7 + seed).view({kRows, 4})};
}

/// What training leaves behind, by name.
struct Training {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> tensors;
  std::uint64_t early = 0;  ///< buckets that were added up while steps still ran

  void note(const std::string& when, const std::string& name, const at::Tensor& tensor) {
    ASSERT_TRUE(tensor.defined()) << when << name;
    tensors[when + name] = tensor.detach().to_dense().clone();
  }
};

inline std::string gradient_of(int step) { return "gradient " + std::to_string(step) + " "; }

inline torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Plain LibTorch with its own engine, on the global batch of `replicas`.
inline Training train_in_one_process(int replicas, bool sparse = false,
                                     at::ScalarType dtype = at::kDouble) {
  Training training;
  torch::manual_seed(3);
  BagOfWordsImpl<PlainLayers> net(sparse, dtype);
  auto optimizer = sgd(net.parameters());
  const double weight = 1.0 / (replicas * kMicrobatches);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double mean = 0;
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [tokens, targets] = samples(step, replica);
      for (int m = 0; m < kMicrobatches; ++m) {
        const auto loss = torch::mse_loss(net.forward(tokens.chunk(kMicrobatches)[m]),
                                          targets.to(dtype).chunk(kMicrobatches)[m]);
        mean += loss.template item<double>() * weight;
        (loss * weight).backward();
      }
    }
    training.losses.push_back(mean);
    for (const auto& item : net.named_parameters()) {
      training.note(gradient_of(step), item.key(), item.value().grad());
    }
    optimizer.step();
  }
  for (const auto& item : net.named_parameters()) training.note("", item.key(), item.value());
  return training;
}

/// This rank's part of it, inside of a session. Losses are those of the global batch.
inline Training train_sliced(bool sparse = false, bool sharded = false,
                             at::ScalarType dtype = at::kDouble) {
  Training training;
  torch::manual_seed(3);
  SlicedBag net(sparse, dtype);
  DistributedModel model(net);
  const int last = pp_size() - 1;
  model.set_partition("", 0);
  model.set_partition("first", last);
  model.set_partition("whole", last);
  DistributedOptimizer optimizer(model, sgd(model.parameters()));
  auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
    const auto loss = torch::mse_loss(model(tokens), targets);
    model.backward(loss);
    return loss;
  });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    const auto [tokens, targets] = samples(s, data_shard().index);
    const double own = train(tokens, targets.to(dtype)).reduce_mean().template item<double>();
    double sum = 0;
    for (const int member : group(Group::kDp)) sum += broadcast(own, member, Group::kDp);
    training.losses.push_back(sum / dp_size());
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      // where it is stepped
      if (sharded && !parameter.grad().defined()) continue;
      training.note(gradient_of(s), name, parameter.grad());
    }
    optimizer.step();
  }
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    training.note("", name, parameter);
  }
  training.early = Replicas::current().gradients().averaged_early();
  return training;
}

/// The part of `whole` that rank `tp` of `size` holds of the parameter behind `name`.
inline at::Tensor slice_of(const at::Tensor& whole, const std::string& name, int tp, int size) {
  const auto parameter = name.substr(name.rfind(' ') + 1);
  const auto found = kSliced.find(parameter);
  if (found == kSliced.end()) return whole;
  return whole.chunk(size, found->second)[static_cast<std::size_t>(tp)];
}

/// Of one rank. @return the names that it has
inline std::set<std::string> expect_equal(const Training& ours, const Training& reference, int tp,
                                          int size, double tolerance = 1e-12) {
  EXPECT_EQ(ours.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], reference.losses[i], tolerance) << "step " << i;
  }
  std::set<std::string> names;
  for (const auto& [name, tensor] : ours.tensors) {
    names.insert(name);
    const auto expected = slice_of(reference.tensors.at(name), name, tp, size);
    EXPECT_EQ(tensor.sizes(), expected.sizes()) << name;
    if (tensor.sizes() != expected.sizes()) continue;
    const double scale = std::max(1e-3, expected.abs().max().item<double>());
    EXPECT_LE((tensor - expected).abs().max().item<double>(), tolerance * scale) << name;
  }
  return names;
}

}  // namespace smp::tp
