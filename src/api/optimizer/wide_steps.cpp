// api/optimizer/wide_steps.cpp: tensors change places for the time of a step.
#include "api/optimizer/wide_steps.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/optimizer/fused_update.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/state/optimizer_fields.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "checkpoint/module_tensors.h"
#include "precision/stochastic_rounding.h"
#include "precision/wide_values.h"
#include "smp/distributed_model.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

using torch::optim::Optimizer;

/// State that was made or loaded in 16 bits becomes float32. Adagrad is built with a number in the
/// parameter's type.
void widen(Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
           torch::optim::OptimizerParamState& state) {
  if (auto* const sums = dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    const auto& adagrad = static_cast<const torch::optim::AdagradOptions&>(options);
    if (sums->step() == 0 && sums->sum().scalar_type() != at::kFloat) {
      sums->sum(at::full_like(sums->sum(), adagrad.initial_accumulator_value(),
                              sums->sum().options().dtype(at::kFloat)));
    }
  }
  with_kind(optimizer, [&](auto kind) {
    each_state_field(static_cast<typename decltype(kind)::State&>(state),
                     [](const char*, auto& value) {
                       if constexpr (std::is_same_v<decltype(value), at::Tensor&>) {
                         if (value.defined()) value = value.to(at::kFloat);
                       }
                     });
  });
}

/// While it lives, `wide` stands for `parameter` in the optimizer's state, with its gradient.
class WideInPlace {
 public:
  WideInPlace(Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
              const at::Tensor& parameter, const at::Tensor& wide)
      : optimizer_(optimizer), group_(group), parameter_(parameter), wide_(wide) {
    wide_.mutable_grad() = parameter.grad().detach().to(at::kFloat);
    move_state(parameter_, wide_);
  }
  ~WideInPlace() { move_state(wide_, parameter_); }
  WideInPlace(const WideInPlace&) = delete;
  WideInPlace& operator=(const WideInPlace&) = delete;

 private:
  void move_state(const at::Tensor& from, const at::Tensor& to) {
    auto& all = optimizer_.state();
    const auto found = all.find(from.unsafeGetTensorImpl());
    if (found == all.end()) return;
    auto state = std::move(found->second);
    all.erase(found);
    if (state == nullptr) return;
    widen(optimizer_, group_.options(), *state);
    all[to.unsafeGetTensorImpl()] = std::move(state);
  }

  Optimizer& optimizer_;
  torch::optim::OptimizerParamGroup& group_;
  const at::Tensor parameter_;
  at::Tensor wide_;
};

/// Takes all parameters out of the groups, and puts them back at its end.
class EmptyGroups {
 public:
  explicit EmptyGroups(Optimizer& optimizer) : groups_(optimizer.param_groups()) {
    for (auto& group : groups_) parameters.push_back(std::exchange(group.params(), {}));
  }
  ~EmptyGroups() {
    for (std::size_t g = 0; g < groups_.size(); ++g) groups_[g].params() = std::move(parameters[g]);
  }
  EmptyGroups(const EmptyGroups&) = delete;
  EmptyGroups& operator=(const EmptyGroups&) = delete;

  std::vector<std::vector<at::Tensor>> parameters;  ///< by group

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
};

/// Where the elements of `parameter` lie in the whole that it is slice `rank` of.
precision::WholeIndex place_of(const at::Tensor& parameter,
                               const std::optional<ParameterSlice>& slice, int rank) {
  if (!slice) return {parameter.numel(), parameter.numel(), 0};
  std::int64_t inside = 1;
  for (auto dim = slice->dim + 1; dim < parameter.dim(); ++dim) inside *= parameter.size(dim);
  const auto inner = parameter.size(slice->dim) * inside;
  return {inner, slice->whole * inside, rank * inner};
}

}  // namespace

bool WideSteps::wanted(const Config& config) {
  return config.master_weights || config.stochastic_rounding;
}

bool WideSteps::wanted(const Config& config, const Optimizer& optimizer) {
  return wanted(config) || (!config.precision.empty() && may_fuse(optimizer));
}

bool WideSteps::is_wide(const at::Tensor& parameter) const {
  if (!wanted(session_.rank.config())) return false;
  const auto type = parameter.scalar_type();
  const bool half = session_.rank.config().master_weights && type == at::kHalf;
  return (type == at::kBFloat16 || half) && parameter.grad().defined();
}

/// A tensor of no model is known by its place in the groups.
void WideSteps::find_identities(const Optimizer& optimizer) {
  const int rank = session_.rank.topology().tp_rank();
  std::size_t number = 0;
  for (const auto* model : session_.state.models()) {
    const tp::SlicedParameters slices(model->base_module());
    for (const auto& [tensor, names] : checkpoints::tensors_of(model->base_module())) {
      identities_.try_emplace(tensor.unsafeGetTensorImpl(),
                              Identity{base::concat(number, '.', names[0]),
                                       place_of(tensor, slices.find(tensor), rank)});
    }
    ++number;
  }
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::size_t others = 0;
    for (const auto& parameter : groups[g].params()) {
      const auto [at, fresh] = identities_.try_emplace(parameter.unsafeGetTensorImpl());
      if (!fresh) continue;
      at->second = {base::concat("param_groups.", g, '.', others++), place_of(parameter, {}, 0)};
    }
  }
}

void WideSteps::run(Optimizer& optimizer, c10::function_ref<void()> step) {
  const auto& config = session_.rank.config();
  SMP_REQUIRE_AS(
      UnsupportedError, !wanted(config) || with_kind(optimizer, [](auto) {}), "rank ",
      session_.rank.topology().rank(),
      ": master_weights and stochastic_rounding step one parameter after the other, in the place "
      "of others; that is known to be right for LibTorch's SGD, Adam, AdamW, Adagrad and RMSprop "
      "only");
  const at::NoGradGuard no_grad;
  session_.state.masters().forget_gone();
  if (config.stochastic_rounding) {
    number_ = static_cast<std::uint64_t>(session_.state.take_rounding());
    find_identities(optimizer);
  }
  const EmptyGroups whole(optimizer);
  auto& groups = optimizer.param_groups();
  std::vector<std::vector<at::Tensor>> one_by_one(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& parameter : whole.parameters[g]) {
      if (step_fused(optimizer, groups[g], parameter)) continue;
      (is_wide(parameter) ? one_by_one[g] : groups[g].params()).push_back(parameter);
    }
  }
  step();
  for (auto& group : groups) group.params().clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& parameter : one_by_one[g]) step_one(optimizer, groups[g], parameter, step);
  }
}

/// Steps `parameter` in one pass over memory, if that can be done.
bool WideSteps::step_fused(Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                           const at::Tensor& parameter) const {
  const bool wide = is_wide(parameter);
  const auto& config = session_.rank.config();
  const bool plain = !config.precision.empty() && parameter.scalar_type() == at::kFloat &&
                     parameter.grad().defined();
  if (!(wide || plain) || !may_fuse(optimizer)) return false;
  if (!wide) return fused_update(optimizer, group, parameter, {}, {});
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (state != optimizer.state().end() && state->second != nullptr) {
    widen(optimizer, group.options(), *state->second);
  }
  if (!config.master_weights) {
    const auto& identity = identities_.at(parameter.unsafeGetTensorImpl());
    return fused_update(optimizer, group, parameter, {},
                        precision::Chance{key_of(identity), identity.part});
  }
  auto& masters = session_.state.masters();
  auto master = masters.of(parameter);
  const bool kept = master.defined() && master.sizes() == parameter.sizes() &&
                    master.device() == parameter.device();
  if (!kept) master = parameter.detach().to(at::kFloat);
  if (!fused_update(optimizer, group, parameter, master, {})) return false;
  if (!kept) masters.set(parameter, std::move(master));
  return true;
}

std::uint64_t WideSteps::key_of(const Identity& identity) const {
  return precision::rounding_key(session_.rank.config().seed, number_, identity.name);
}

void WideSteps::step_one(Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                         const at::Tensor& parameter, c10::function_ref<void()> step) const {
  const auto wide = values_of(parameter);
  {
    const WideInPlace in_place(optimizer, group, parameter, wide);
    group.params() = {wide};
    step();
    group.params().clear();
  }
  wide.mutable_grad().reset();
  round(wide, parameter);
}

at::Tensor WideSteps::values_of(const at::Tensor& parameter) const {
  const bool kept = session_.rank.config().master_weights;
  const auto master = kept ? session_.state.masters().of(parameter) : at::Tensor();
  return precision::wide_values(master, parameter.detach()).contiguous();
}

void WideSteps::round(const at::Tensor& wide, const at::Tensor& parameter) const {
  if (session_.rank.config().master_weights) {
    parameter.detach().copy_(wide);
    session_.state.masters().set(parameter, wide);
    return;
  }
  const auto& identity = identities_.at(parameter.unsafeGetTensorImpl());
  const auto rounded = at::empty(wide.sizes(), wide.options().dtype(at::kBFloat16));
  precision::round_stochastically(wide, rounded, key_of(identity), identity.part);
  parameter.detach().copy_(rounded);
}

}  // namespace smp
