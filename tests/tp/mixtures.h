// tp/mixtures.h: a mixture of experts in one process and over ranks, as layers of one result with
// parameters of the same names.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "smp/nn/mixture_of_experts.h"
#include "smp/tp/distributed_mixture_of_experts.h"

namespace smp::tp {

/// A mixture of which one tensor comes out, so that gradients of both results are seen; and the
/// stacked weights of experts by the names that they have over ranks.
struct PlainMixtureImpl : torch::nn::Module {
  PlainMixtureImpl(const nn::MixtureOfExpertsOptions& options, double bent)
      : layer(register_module("layer", nn::MixtureOfExperts(options))) {
    const torch::NoGradGuard no_grad;
    layer->gate->weight[0] += bent;
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [hidden, balance] = layer(x);
    return hidden + balance;
  }
  /// Replaces torch::nn::Module's for the comparison.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    torch::OrderedDict<std::string, at::Tensor> all;
    all.insert("layer.gate.weight", layer->gate->weight);
    const auto stacked = [&](const char* name, const auto& projection) {
      std::vector<at::Tensor> values, gradients;
      for (const auto& expert : layer->experts) {
        const auto& weight = projection(expert)->weight;
        values.push_back(weight.detach());
        if (weight.grad().defined()) gradients.push_back(weight.grad());
      }
      auto whole = at::stack(values);
      if (gradients.size() == values.size()) whole.mutable_grad() = at::stack(gradients);
      all.insert(std::string("layer.experts.") + name, whole);
    };
    stacked("gate_proj", [](const nn::GatedMlp& expert) { return expert->gate_proj; });
    stacked("up_proj", [](const nn::GatedMlp& expert) { return expert->up_proj; });
    stacked("down_proj", [](const nn::GatedMlp& expert) { return expert->down_proj; });
    if (layer->shared_expert) {
      for (const auto& item : layer->shared_expert->named_parameters()) {
        all.insert("layer.shared_expert." + item.key(), item.value());
      }
    }
    return all;
  }
  nn::MixtureOfExperts layer;
};

struct SlicedMixtureImpl : torch::nn::Module {
  SlicedMixtureImpl(const nn::MixtureOfExpertsOptions& options, double bent)
      : layer(register_module("layer", nn::DistributedMixtureOfExperts(options))) {
    const torch::NoGradGuard no_grad;
    layer->named_parameters()["gate.weight"][0] += bent;
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [hidden, balance] = layer(x);
    return hidden + balance;
  }
  nn::DistributedMixtureOfExperts layer;
};

}  // namespace smp::tp
