// Ways in which programs step parameters by themselves: with LibTorch's fused kernels, which leave
// versions as they were, through data(), with new memory, with operators on lists.
#pragma once

#include <torch/torch.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace smp::user_steps {

using at::Tensor;
using Parameters = std::vector<Tensor>;

enum class UserStep { kFusedAdamw, kFusedSgd, kForeach, kData, kSetData };
inline constexpr std::array kWays{UserStep::kFusedAdamw, UserStep::kFusedSgd, UserStep::kForeach,
                                  UserStep::kData, UserStep::kSetData};
inline const char* name_of(UserStep way) {
  constexpr std::array kNames{"_fused_adamw_", "_fused_sgd_", "_foreach_add_", "data()",
                              "set_data()"};
  return kNames[static_cast<std::size_t>(way)];
}

/// An optimizer of a program's own. It keeps what AdamW keeps.
class UserOptimizer : public torch::optim::AdamW {
 public:
  UserOptimizer(const Parameters& parameters, UserStep way, double lr = 0.05)
      : AdamW(parameters, torch::optim::AdamWOptions(lr).weight_decay(0.1)), way_(way) {}
  UserOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, UserStep way)
      : AdamW(groups, torch::optim::AdamWOptions(0.05)), way_(way) {}

  Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      Parameters stepped, gradients;
      for (const auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        stepped.push_back(parameter);
        gradients.push_back(parameter.grad());
      }
      const auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
      if (!stepped.empty()) step(stepped, gradients, options);
    }
    return {};
  }

 private:
  void step(const Parameters& stepped, const Parameters& gradients,
            const torch::optim::AdamWOptions& options) {
    const double lr = options.lr();
    switch (way_) {
      case UserStep::kFusedAdamw:
        return fused_adamw(stepped, gradients, options);
      case UserStep::kFusedSgd: {
        Parameters momenta;
        for (const auto& gradient : gradients) momenta.push_back(at::zeros_like(gradient));
        return at::_fused_sgd_(stepped, gradients, momenta, 0, 0.5, lr, 0, false, false, true);
      }
      case UserStep::kForeach:
        return at::_foreach_add_(stepped, gradients, -lr);
      case UserStep::kData:
        for (const auto& parameter : stepped) parameter.data().sub_(parameter.grad(), lr);
        return;
      case UserStep::kSetData:
        for (const auto& parameter : stepped) {
          parameter.set_data(parameter.detach() - lr * parameter.grad());
        }
        return;
    }
  }

  void fused_adamw(const Parameters& stepped, const Parameters& gradients,
                   const torch::optim::AdamWOptions& options) {
    Parameters first, second, steps;
    for (const auto& parameter : stepped) {
      auto& kept = state()[parameter.unsafeGetTensorImpl()];
      if (!kept) {
        auto fresh = std::make_unique<torch::optim::AdamWParamState>();
        fresh->exp_avg(at::zeros_like(parameter)).exp_avg_sq(at::zeros_like(parameter));
        kept = std::move(fresh);
      }
      auto& own = static_cast<torch::optim::AdamWParamState&>(*kept);
      own.step(own.step() + 1);
      first.push_back(own.exp_avg());
      second.push_back(own.exp_avg_sq());
      steps.push_back(at::scalar_tensor(own.step(), at::kFloat));
    }
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(stepped, gradients, first, second, {}, steps, options.lr(), beta1, beta2,
                      options.weight_decay(), options.eps(), false, false);
  }

  UserStep way_;
};

}  // namespace smp::user_steps
