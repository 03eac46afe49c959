// api/state/optimizer_fields.h: what LibTorch's optimizers keep for a parameter, and their
// options, by PyTorch's names.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace smp {

/// What is kept beside a parameter of 16 bits, whatever the optimizer's kind.
inline constexpr const char* kMasterField = "master";

// Each calls `field(name, value)` for at::Tensor& and std::int64_t& of a state, double& and bool&
// of options.

template <class Field>
void each_state_field(torch::optim::SGDParamState& state, Field&& field) {
  field("momentum_buffer", state.momentum_buffer());
}
template <class AdamState, class Field>
void each_adam_state_field(AdamState& state, Field&& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg());
  field("exp_avg_sq", state.exp_avg_sq());
  field("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <class Field>
void each_state_field(torch::optim::AdamParamState& state, Field&& field) {
  each_adam_state_field(state, field);
}
template <class Field>
void each_state_field(torch::optim::AdamWParamState& state, Field&& field) {
  each_adam_state_field(state, field);
}
template <class Field>
void each_state_field(torch::optim::AdagradParamState& state, Field&& field) {
  field("step", state.step());
  field("sum", state.sum());
}
template <class Field>
void each_state_field(torch::optim::RMSpropParamState& state, Field&& field) {
  field("step", state.step());
  field("square_avg", state.square_avg());
  field("momentum_buffer", state.momentum_buffer());
  field("grad_avg", state.grad_avg());
}

template <class Field>
void each_option(torch::optim::SGDOptions& options, Field&& field) {
  field("lr", options.lr());
  field("momentum", options.momentum());
  field("dampening", options.dampening());
  field("weight_decay", options.weight_decay());
  field("nesterov", options.nesterov());
}
template <class AdamOptions, class Field>
void each_adam_option(AdamOptions& options, Field&& field) {
  field("lr", options.lr());
  field("beta1", std::get<0>(options.betas()));
  field("beta2", std::get<1>(options.betas()));
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("amsgrad", options.amsgrad());
}
template <class Field>
void each_option(torch::optim::AdamOptions& options, Field&& field) {
  each_adam_option(options, field);
}
template <class Field>
void each_option(torch::optim::AdamWOptions& options, Field&& field) {
  each_adam_option(options, field);
}
template <class Field>
void each_option(torch::optim::AdagradOptions& options, Field&& field) {
  field("lr", options.lr());
  field("lr_decay", options.lr_decay());
  field("weight_decay", options.weight_decay());
  field("initial_accumulator_value", options.initial_accumulator_value());
  field("eps", options.eps());
}
template <class Field>
void each_option(torch::optim::RMSpropOptions& options, Field&& field) {
  field("lr", options.lr());
  field("alpha", options.alpha());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("momentum", options.momentum());
  field("centered", options.centered());
}

/// True if an optimizer that has such a field has it for every parameter; other fields depend on
/// options.
inline bool is_always_kept(std::string_view field) noexcept {
  return field != "momentum_buffer" && field != "max_exp_avg_sq" && field != "grad_avg";
}

/// True if an optimizer with these options reads such a field of every parameter that has a state.
inline bool needs_field(const torch::optim::OptimizerOptions& options, std::string_view field) {
  using namespace torch::optim;
  if (is_always_kept(field)) return true;
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return adam->amsgrad();
  if (const auto* adam = dynamic_cast<const AdamWOptions*>(&options)) return adam->amsgrad();
  if (const auto* prop = dynamic_cast<const RMSpropOptions*>(&options)) {
    return field == "grad_avg" ? prop->centered() : prop->momentum() > 0;
  }
  return false;
}

template <class MadeType, class StateType, class OptionsType>
struct OptimizerKind {
  using Made = MadeType;
  using State = StateType;
  using Options = OptionsType;
  const char* name;
};

/// Returns what LibTorch says against options of this kind when an optimizer is made; empty:
/// nothing.
template <class Kind>
std::string problem_with_options(const typename Kind::Options& options) {
  try {
    typename Kind::Made(std::vector<at::Tensor>(), options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

/// Calls `action(kind)` with the OptimizerKind of `optimizer`. Returns false if it is none of
/// LibTorch's optimizers that work element by element.
template <class Action>
bool with_kind(torch::optim::Optimizer& optimizer, Action&& action) {
  using namespace torch::optim;
  if (dynamic_cast<SGD*>(&optimizer)) {
    action(OptimizerKind<SGD, SGDParamState, SGDOptions>{"SGD"});
  } else if (dynamic_cast<AdamW*>(&optimizer)) {
    action(OptimizerKind<AdamW, AdamWParamState, AdamWOptions>{"AdamW"});
  } else if (dynamic_cast<Adam*>(&optimizer)) {
    action(OptimizerKind<Adam, AdamParamState, AdamOptions>{"Adam"});
  } else if (dynamic_cast<Adagrad*>(&optimizer)) {
    action(OptimizerKind<Adagrad, AdagradParamState, AdagradOptions>{"Adagrad"});
  } else if (dynamic_cast<RMSprop*>(&optimizer)) {
    action(OptimizerKind<RMSprop, RMSpropParamState, RMSpropOptions>{"RMSprop"});
  } else {
    return false;
  }
  return true;
}

}  // namespace smp
