// Ways in which a module adds to the gradient of its parameter by itself: the loss that it never
// returns is c * sum(w^3), whose gradient is 3 c w^2.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "smp/smp.h"

namespace smp {

/// What a loss that is added counts now: 1, or smp::microbatch_weight().
using AddedWeight = std::function<double()>;

enum class Adding {
  kFunction,        ///< a custom function returns more than the chain rule asks for
  kTensorHook,      ///< a hook of a tensor that is computed from the parameter
  kLeafHook,        ///< a hook of the parameter
  kOwnBackward,     ///< penalty.backward() in forward, by LibTorch's own engine
  kNestedBackward,  ///< the same in the backward of a custom function
  kNone,
};
inline constexpr Adding kAddings[] = {Adding::kFunction,       Adding::kTensorHook,
                                      Adding::kLeafHook,       Adding::kOwnBackward,
                                      Adding::kNestedBackward, Adding::kNone};

inline std::string name_of(Adding way) {
  static const char* const names[] = {"function",     "tensor hook",     "leaf hook",
                                      "own backward", "nested backward", "nothing"};
  return names[static_cast<int>(way)];
}

inline constexpr double kAddedFactor = 0.3;  // c

inline at::Tensor penalty_of(const at::Tensor& w) { return kAddedFactor * w.pow(3).sum(); }
inline at::Tensor gradient_of_penalty(const at::Tensor& w) {
  return 3 * kAddedFactor * w.detach().square();
}

/// The identity of x, whose backward returns the gradient of the penalty for w.
struct AddGradient : torch::autograd::Function<AddGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, const AddedWeight* weight) {
    context->saved_data["weight"] = reinterpret_cast<std::int64_t>(weight);
    context->save_for_backward({w});
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& weight =
        *reinterpret_cast<const AddedWeight*>(context->saved_data["weight"].toInt());
    const auto w = context->get_saved_variables()[0];
    return {gradients[0], gradient_of_penalty(w) * weight(), at::Tensor()};
  }
};

/// The identity of x, whose backward runs that of the penalty.
struct NestBackward : torch::autograd::Function<NestBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, const AddedWeight* weight) {
    context->saved_data["weight"] = reinterpret_cast<std::int64_t>(weight);
    context->saved_data["w"] = w;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& weight =
        *reinterpret_cast<const AddedWeight*>(context->saved_data["weight"].toInt());
    const auto w = context->saved_data["w"].toTensor();
    {
      const at::AutoGradMode grad(true);
      (penalty_of(w) * weight()).backward();
    }
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

/// tanh(x) * w, and what it adds to the gradient of w.
struct GateImpl : torch::nn::Module {
  explicit GateImpl(
      Adding of, AddedWeight asks = [] { return 1.0; }, int width = 4)
      : way(of),
        weight(std::move(asks)),
        w(register_parameter("w", torch::linspace(-0.8, 1.3, width, torch::kDouble))) {
    if (way != Adding::kLeafHook) return;
    w.register_hook([this](const at::Tensor& gradient) {
      return gradient + gradient_of_penalty(w) * weight();
    });
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = torch::tanh(x);
    if (!at::GradMode::is_enabled()) return y * w;
    switch (way) {
      case Adding::kFunction:
        return AddGradient::apply(y * w, w, &weight);
      case Adding::kNestedBackward:
        return NestBackward::apply(y * w, w, &weight);
      case Adding::kTensorHook: {
        const auto own = w * 1;
        own.register_hook([this](const at::Tensor& gradient) {
          return gradient + gradient_of_penalty(w) * weight();
        });
        return y * own;
      }
      case Adding::kOwnBackward:
        (penalty_of(w) * weight()).backward();
        return y * w;
      default:
        return y * w;
    }
  }
  const Adding way;
  const AddedWeight weight;
  at::Tensor w;
};
SMP_MODULE(Gate);

}  // namespace smp
