// zoo/zoo.h: small models of every shape the library promises to train, one Case each. Later suites
// run the same zoo.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smp/smp.h"

namespace smp::zoo {

using torch::Tensor;

/// Root of every zoo model: from one microbatch's tensors to its losses.
struct ModelImpl : torch::nn::Module {
  virtual std::vector<Tensor> forward(const std::vector<Tensor>& inputs) = 0;
};
using Model = std::shared_ptr<ModelImpl>;

struct Case {
  std::string name;
  std::function<Model()> make;
  /// The whole batch of a step, from its number; the same on every rank.
  std::function<std::vector<Tensor>(int step)> batch;
  /// Modules that may be placed on any rank.
  std::vector<std::string> paths;
  /// Each loss gets its own backward (the first ones keep the graph).
  bool separate_backwards = false;
  /// Draws random numbers: the reference is this library on one rank.
  bool random = false;
  /// Steps of evaluation before training.
  int evaluations = 0;
};

template <class Impl, class... Arguments>
std::function<Model()> makes(Arguments... arguments) {
  return [arguments...]() -> Model { return smp::make_module<Impl>(arguments...); };
}

/// Numbers that depend on `seed` only.
inline Tensor numbers(int seed, std::vector<int64_t> sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + 1000);
  return torch::randn(sizes, generator, torch::kDouble);
}
inline Tensor tokens(int seed, int64_t below, std::vector<int64_t> sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + 2000);
  return torch::randint(below, sizes, generator, torch::kLong);
}

}  // namespace smp::zoo
