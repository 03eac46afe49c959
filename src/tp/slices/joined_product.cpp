// tp/slices/joined_product.cpp: see the header.
#include "tp/slices/joined_product.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "nn/weight_casts.h"

namespace smp::tp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

struct JoinedProduct : torch::autograd::Function<JoinedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& bias, at::TensorList weights,
                            const c10::intrusive_ptr<MultipliedInput>& input) {
    variable_list saved{input ? at::Tensor() : x};
    if (input)
      context->saved_data["input"] =
          at::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(input));
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["biased"] = bias.has_value();
    return at::linear(x, at::cat(weights), bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto weights = context->get_saved_variables();
    const auto x = context->saved_data.count("input") > 0 ? taken(*context) : weights[0];
    weights.erase(weights.begin());
    const bool biased = context->saved_data["biased"].toBool();
    const auto& given = gradients[0];
    const auto rows = rows_of(given);
    variable_list results{at::Tensor(), at::Tensor()};
    if (context->needs_input_grad(0)) results[0] = at::matmul(given, at::cat(weights));
    // An argument that is not given is none of those that needs_input_grad() counts.
    if (biased && context->needs_input_grad(1)) results[1] = rows.sum(0);
    const std::size_t first = biased ? 2 : 1;
    bool needed = false;
    for (std::size_t i = 0; i < weights.size(); ++i) needed |= context->needs_input_grad(first + i);
    std::int64_t row = 0;
    const auto all = needed ? rows.t().matmul(rows_of(x)) : at::Tensor();
    for (const auto& weight : weights) {
      results.push_back(needed ? all.narrow(0, row, weight.size(0)) : at::Tensor());
      row += weight.size(0);
    }
    results.emplace_back();
    return results;
  }

  static at::Tensor taken(AutogradContext& context) {
    const auto held = context.saved_data["input"].toCapsule();
    return std::exchange(static_cast<MultipliedInput&>(*held).value, at::Tensor());
  }
};

}  // namespace

at::Tensor joined_product(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const at::Tensor& bias) {
  if (weights.size() == 1) return at::linear(x, nn::cast_of(weights[0]), bias);
  if (at::autocast::is_autocast_enabled(x.device().type())) {
    std::vector<at::Tensor> casts;
    for (const auto& weight : weights) casts.push_back(nn::cast_of(weight));
    return at::linear(x, at::cat(casts), bias);
  }
  return JoinedProduct::apply(x, bias.defined() ? std::optional(bias) : std::nullopt,
                              at::TensorList(weights), c10::intrusive_ptr<MultipliedInput>());
}

at::Tensor joined_product(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const at::Tensor& bias,
                          const c10::intrusive_ptr<MultipliedInput>& input) {
  return JoinedProduct::apply(x, bias.defined() ? std::optional(bias) : std::nullopt,
                              at::TensorList(weights), input);
}

}  // namespace smp::tp
