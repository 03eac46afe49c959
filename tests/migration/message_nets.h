// migration/message_nets.h: jobs and a model whose bodies send messages.
#pragma once

#include <torch/types.h>

#include <string>

#include "api/two_ranks.h"

namespace smp {
namespace message_nets {

/// Of a size that travels by itself.
inline at::Tensor large(double value) { return torch::full({3000}, value, torch::kDouble); }

inline Config layout(int stages, int tp = 1, const std::string& placement = "cluster") {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.tensor_parallel_degree = tp;
  config.placement_strategy = placement;
  config.microbatches = 3;
  config.plan_cache = "off";
  config.skip_tracing = true;
  return config;
}

struct ShiftImpl : torch::nn::Module {
  ShiftImpl() : weight(register_parameter("weight", torch::ones({1}, torch::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
SMP_MODULE(Shift);

struct TwinImpl : torch::nn::Module {
  TwinImpl() : near(register_module("near", Shift())), far(register_module("far", Shift())) {}
  at::Tensor forward(const at::Tensor& x) { return far(near(x)); }
  Shift near, far;
};
SMP_MODULE(Twin);

}  // namespace message_nets
}  // namespace smp
