// api/optimizer/fused_update.cpp: LibTorch's options and state as what the loops want.
#include "api/optimizer/fused_update.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>

#include "smp/distributed_optimizer.h"

namespace smp {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

template <class Kind>
bool is_exactly(const Optimizer& optimizer) {
  return typeid(optimizer) == typeid(Kind) ||
         typeid(optimizer) == typeid(detail::GuardedOptimizer<Kind>);
}

/// The state of a parameter; made as LibTorch makes it, but in float32.
template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

template <class State>
const State* find_state(Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr
                                          : static_cast<const State*>(found->second.get());
}

at::Tensor zeros_of(const at::Tensor& parameter) {
  return at::zeros(parameter.sizes(), parameter.options().dtype(at::kFloat));
}

template <class Options>
precision::AdamFactors factors_of(const Options& options, std::int64_t step) {
  const auto [beta1, beta2] = options.betas();
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  constexpr bool kDecoupled = std::is_same_v<Options, torch::optim::AdamWOptions>;
  precision::AdamFactors factors{};
  factors.decay = static_cast<float>(kDecoupled ? 1 - options.lr() * options.weight_decay() : 1.0);
  factors.penalty = static_cast<float>(kDecoupled ? 0.0 : options.weight_decay());
  factors.beta1 = static_cast<float>(beta1);
  factors.take1 = static_cast<float>(1 - beta1);
  factors.beta2 = static_cast<float>(beta2);
  factors.take2 = static_cast<float>(1 - beta2);
  factors.root2 = static_cast<float>(std::sqrt(correction2));
  factors.inverse_root2 = static_cast<float>(1 / std::sqrt(correction2));
  factors.eps = static_cast<float>(options.eps());
  factors.step = static_cast<float>(-(options.lr() / correction1));
  return factors;
}

template <class State, class Options>
bool step_adam(Optimizer& optimizer, OptimizerParamGroup& group, const at::Tensor& parameter,
               precision::FusedTensors tensors, const std::optional<precision::Chance>& chance) {
  const auto& options = static_cast<const Options&>(group.options());
  if (options.amsgrad()) return false;
  const auto* const known = find_state<State>(optimizer, parameter);
  if (known != nullptr) {
    tensors.first = known->exp_avg();
    tensors.second = known->exp_avg_sq();
    if (!tensors.first.defined() || !tensors.second.defined()) return false;
  }
  if (!precision::can_fuse(tensors)) return false;
  auto& state = state_of<State>(optimizer, parameter);
  if (known == nullptr) {
    state.step(0);
    state.exp_avg(tensors.first = zeros_of(parameter));
    state.exp_avg_sq(tensors.second = zeros_of(parameter));
  }
  state.step(state.step() + 1);
  precision::fused_step(tensors, chance, factors_of(options, state.step()));
  return true;
}

bool step_sgd(Optimizer& optimizer, OptimizerParamGroup& group, const at::Tensor& parameter,
              precision::FusedTensors tensors, const std::optional<precision::Chance>& chance) {
  using State = torch::optim::SGDParamState;
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  precision::SgdFactors factors{};
  factors.penalty = static_cast<float>(options.weight_decay());
  factors.momentum = static_cast<float>(options.momentum());
  factors.take = static_cast<float>(1 - options.dampening());
  factors.nesterov = options.nesterov();
  factors.step = static_cast<float>(-1 * options.lr());
  if (options.momentum() != 0) {
    const auto* const known = find_state<State>(optimizer, parameter);
    factors.fresh = known == nullptr;
    tensors.first = factors.fresh ? zeros_of(parameter) : known->momentum_buffer();
    if (!tensors.first.defined()) return false;
  }
  if (!precision::can_fuse(tensors)) return false;
  if (factors.fresh) state_of<State>(optimizer, parameter).momentum_buffer(tensors.first);
  precision::fused_step(tensors, chance, factors);
  return true;
}

}  // namespace

bool may_fuse(const Optimizer& optimizer) {
  using namespace torch::optim;
  return is_exactly<Adam>(optimizer) || is_exactly<AdamW>(optimizer) || is_exactly<SGD>(optimizer);
}

bool fused_update(Optimizer& optimizer, OptimizerParamGroup& group, const at::Tensor& parameter,
                  const at::Tensor& master, const std::optional<precision::Chance>& chance) {
  using namespace torch::optim;
  const auto& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided) return false;
  const precision::FusedTensors tensors{
      parameter.detach(), gradient.detach().contiguous(), master, {}, {}};
  if (is_exactly<AdamW>(optimizer)) {
    return step_adam<AdamWParamState, AdamWOptions>(optimizer, group, parameter, tensors, chance);
  }
  if (is_exactly<Adam>(optimizer)) {
    return step_adam<AdamParamState, AdamOptions>(optimizer, group, parameter, tensors, chance);
  }
  return is_exactly<SGD>(optimizer) && step_sgd(optimizer, group, parameter, tensors, chance);
}

}  // namespace smp
