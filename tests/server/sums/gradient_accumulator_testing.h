// tests/server/sums/gradient_accumulator_testing.h: parameters that write down what is added to
// their gradients, and an accumulator whose executions the test opens, feeds and closes by hand.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "server/sums/gradient_accumulator.h"
#include "smp/error.h"

namespace smp::server::test {

/// A parameter whose hook writes down what is applied.
struct Watched {
  explicit Watched(at::ScalarType type = at::kFloat)
      : tensor(at::zeros({}, type).requires_grad_()),
        edge(torch::autograd::impl::gradient_edge(tensor)) {
    tensor.register_hook([this](const at::Tensor& gradient) {
      if (gradient.defined()) applied.push_back(gradient.item<float>());
      if (on_hook) on_hook();
    });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  torch::autograd::AccumulateGrad& leaf() const {
    return static_cast<torch::autograd::AccumulateGrad&>(*edge.function);
  }
  float grad() const { return tensor.grad().item<float>(); }

  at::Tensor tensor;
  torch::autograd::Edge edge;
  std::vector<float> applied;
  std::function<void()> on_hook;
};

inline OrderKey call_path(std::initializer_list<std::uint32_t> ordinals) {
  OrderKey key;
  for (const auto ordinal : ordinals) key.append(ordinal);
  return key;
}

/// Three microbatches, and two parameters that their executions may reach.
class GradientAccumulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    numbers_.place(weight_.tensor);  // the other is unknown to it
    accumulator_.begin(3);
  }
  void TearDown() override { accumulator_.drop(); }

  /// An execution whose backward reaches the weight.
  ExecutionId record(int microbatch, OrderKey order = {}) {
    return record_reaching({&weight_}, microbatch, std::move(order), false);
  }
  /// One that the body calls after its first backward.
  ExecutionId record_after(int microbatch, OrderKey order) {
    return record_reaching({&weight_}, microbatch, std::move(order), true);
  }
  ExecutionId record_reaching(std::initializer_list<const Watched*> reached, int microbatch,
                              OrderKey order, bool after = false) {
    const auto id = accumulator_.open(microbatch, std::move(order), after);
    edge_list roots;
    for (const auto* one : reached) {
      roots.push_back(torch::autograd::impl::gradient_edge(one->tensor * 2));
    }
    accumulator_.recorded(id, std::move(roots));
    return id;
  }
  void put(ExecutionId id, float gradient, bool after = false) {
    put(id, weight_, gradient, after);
  }
  void put(ExecutionId id, const Watched& parameter, float gradient, bool after = false) {
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass(accumulator_, id, after)
        .put(parameter.leaf(), {at::full({}, gradient, parameter.tensor.options())});
  }
  void put_and_close(ExecutionId id, float gradient) {
    put(id, gradient);
    accumulator_.close(id);
  }

  Watched weight_, other_;
  ParameterNumbers numbers_;
  bool refuse_ = false;
  std::map<const void*, int> guarded_;
  GradientAccumulator accumulator_{numbers_,
                                   [this](const at::Tensor& parameter) {
                                     if (refuse_) throw UsageError("foreign");
                                     ++guarded_[parameter.unsafeGetTensorImpl()];
                                   },
                                   [this](int microbatch, const at::Tensor& leaf) {
                                     return 2u * static_cast<unsigned>(microbatch) +
                                            (leaf.is_same(weight_.tensor) ? 0u : 1u);
                                   }};
};

}  // namespace smp::server::test
