// tests/module/routed_models.h: modules with every kind of method that SMP_MODULE can route.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "smp/module.h"
#include "smp/nn/linear.h"

namespace smp::test {

using torch::Tensor;

inline const Tensor kOnes = torch::ones({2});

inline bool is_filled(const Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

/// One weight that tells the copies of different ranks apart.
struct WeightedImpl : torch::nn::Module {
  Tensor weight;
  explicit WeightedImpl(double value = 1)
      : weight(register_parameter("weight", torch::full({2}, value))) {}
};

struct ScaleImpl : torch::nn::Cloneable<ScaleImpl> {
  double value;
  Tensor weight;
  explicit ScaleImpl(double value = 1) : value(value) { ScaleImpl::reset(); }
  void reset() override { weight = register_parameter("weight", torch::full({2}, value)); }
  Tensor forward(const Tensor& x) { return x * weight; }
};
SMP_MODULE(Scale);

/// Can be cloned, with its children.
struct TwoScalesImpl : torch::nn::Cloneable<TwoScalesImpl> {
  Scale first{nullptr}, second{nullptr};
  TwoScalesImpl() { TwoScalesImpl::reset(); }
  void reset() override {
    first = register_module("first", Scale(2));
    second = register_module("second", Scale(3));
  }
  Tensor forward(const Tensor& x) { return second(first(x)); }
};
SMP_MODULE(TwoScales);

struct ConstScaleImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor forward(Tensor x) const noexcept { return x * weight; }
};
SMP_MODULE(ConstScale);

/// Default arguments: one is a tensor, one a view.
struct DefaultsImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor forward(const Tensor& x, double factor = 10, at::IntArrayRef shape = {},
                 const std::optional<Tensor>& bias = std::nullopt) {
    auto y = x * weight * factor;
    if (!shape.empty()) y = y.reshape(shape);
    return bias ? y + *bias : y;
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(10.0)},
                           {2, torch::nn::AnyValue(at::IntArrayRef())},
                           {3, torch::nn::AnyValue(std::optional<Tensor>())})
};
SMP_MODULE(Defaults);

struct OverloadedImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor forward(const Tensor& x) { return x * weight; }
  std::pair<Tensor, int> forward(const Tensor& x, int n) { return {x * weight * n, n + 1}; }
  std::string forward(const std::string& text) const { return text + "!"; }
};
SMP_MODULE(Overloaded);

struct TemplatedImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  template <class T>
  Tensor forward(const Tensor& x, T factor) {
    return x * weight * static_cast<double>(factor);
  }
};
SMP_MODULE(Templated);

struct AbstractLayer : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  virtual Tensor forward(Tensor x) = 0;
};
struct ConcreteImpl : AbstractLayer {
  using AbstractLayer::AbstractLayer;
  Tensor forward(Tensor x) override { return x * weight; }
};
SMP_MODULE(Concrete);

/// No forward, two named methods that share a weight.
struct TiedImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor embed(const Tensor& x) { return x * weight; }
  Tensor logits(const Tensor& x, double factor = 1) const { return x / weight * factor; }
  void remember(int value) { remembered = value; }
  int remembered = 0;
};
SMP_MODULE(Tied, embed, logits, remember);

struct State {
  Tensor hidden;
  std::int64_t step = 0;
  std::vector<std::optional<Tensor>> extra;
};
struct StatefulImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  std::tuple<Tensor, State> forward(const Tensor& x, const State& state,
                                    std::map<std::string, double> options, Tensor&& spare) {
    State next{state.hidden.defined() ? state.hidden + x : x, state.step + 1, {spare, {}}};
    return {x * weight * options.at("scale"), next};
  }
};
SMP_MODULE(Stateful);

/// Neither parameter can be sent.
struct CallbackImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor forward(const Tensor& x, std::function<Tensor(Tensor)> f) { return f(x) * weight; }
};
SMP_MODULE(Callback);
struct OutputParameterImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  void forward(const Tensor& x, std::vector<Tensor>& out) { out.push_back(x * weight); }
};
SMP_MODULE(OutputParameter);
struct ReferenceResultImpl : WeightedImpl {
  using WeightedImpl::WeightedImpl;
  Tensor& forward(int) { return weight; }
};
SMP_MODULE(ReferenceResult);

/// Children by holder, list and base pointer.
struct NetImpl : torch::nn::Module {
  Scale first{nullptr};
  torch::nn::ModuleList rest;
  std::shared_ptr<AbstractLayer> last;
  explicit NetImpl(double value = 2) {
    first = register_module("first", Scale(value));
    rest = register_module("rest", torch::nn::ModuleList(Scale(value + 1), Scale(value + 2)));
    last = register_module<AbstractLayer>("last", smp::make_module<ConcreteImpl>(value + 3));
  }
  Tensor forward(Tensor x) {
    x = first(x);
    for (const auto& layer : *rest) x = layer->as<Scale>()->forward(x);
    return last->forward(x);
  }
};
SMP_MODULE(Net);

}  // namespace smp::test
