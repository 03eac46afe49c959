// Models built under smp::delay_param_initialization, filled as ranks fill them, and compared with
// those built without it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deferred/delayed_tensors.h"
#include "smp/delayed_init.h"

namespace smp::deferred {

namespace nn = torch::nn;
using torch::Tensor;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

inline Tensors tensors_of(const nn::Module& module) {
  Tensors tensors;
  for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : all) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

inline Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

/// What a rank does that owns `owned`.
inline void materialise(
    const nn::Module& module,
    const std::function<bool(const std::string&)>& owned = [](auto&) { return true; }) {
  Materialiser materialiser;
  const auto tensors = tensors_of(module);
  for (const auto& [name, tensor] : tensors) materialiser.announce(name, tensor);
  for (const auto& [name, tensor] : tensors) {
    if (owned(name)) materialiser.fill(tensor);
  }
}

inline void expect_equal(const nn::Module& ours, const nn::Module& eager) {
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
inline auto custom(std::function<void(Custom&)> body) {
  return [body] { return std::make_shared<Custom>(body); };
}

}  // namespace smp::deferred
