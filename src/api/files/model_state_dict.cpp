// api/files/model_state_dict.cpp: state dicts of models, distributed and plain.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <unordered_set>

#include "api/files/local_slices.h"
#include "api/files/model_exchange.h"
#include "api/rank/public_call.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "checkpoint/load_plan.h"
#include "d2d/tensors/tensor_data.h"
#include "deferred/delayed_tensors.h"
#include "smp/state_dict.h"

namespace smp {
namespace {

using checkpoints::dict_of;
using checkpoints::NamedTensor;
using checkpoints::tensors_of;

std::vector<at::Tensor> detached(const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& named : tensors) values.push_back(named.tensor.detach());
  return values;
}

/// Returns the tensors that distributed models know, and keep on other ranks.
std::unordered_set<const void*> kept_elsewhere() {
  std::unordered_set<const void*> kept;
  const auto* const state = SessionState::find_current();
  if (state == nullptr) return kept;
  for (const auto* model : state->models()) {
    if (!model->partitioned()) continue;
    for (const auto& named : tensors_of(model->base_module())) {
      if (!model->owns(named.tensor)) kept.insert(named.tensor.unsafeGetTensorImpl());
    }
  }
  return kept;
}

void require_values_here(const std::vector<NamedTensor>& tensors, const char* what) {
  const auto elsewhere = kept_elsewhere();
  for (const auto& [tensor, names] : tensors) {
    SMP_REQUIRE(!deferred::is_delayed(tensor), what, ": ", deferred::no_values_yet(names[0]));
    SMP_REQUIRE(elsewhere.count(tensor.unsafeGetTensorImpl()) == 0, what, ": ", names[0],
                " lives on another rank: call it on the smp::DistributedModel, on every rank");
  }
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  const auto tensors = tensors_of(module);
  require_values_here(tensors, "state_dict");
  return dict_of(module, tensors, detached(tensors));
}

LoadResult load_module(torch::nn::Module& module, const checkpoints::Offer& offer, bool strict,
                       const char* what) {
  const auto tensors = tensors_of(module);
  require_values_here(tensors, what);
  SMP_REQUIRE(offer.problem.empty(), what, ": ", offer.problem);
  auto plan = checkpoints::plan_load(tensors, offer.tensors, strict,
                                     base::concat(what, ": ", offer.source));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!plan.sources[i]) continue;
    const auto problem = checkpoints::problem_with_target(tensors[i].names[0], tensors[i].tensor);
    SMP_REQUIRE(problem.empty(), what, ": ", problem, "; nothing was loaded");
  }
  auto problem = checkpoints::problem_with_repeats(tensors, offer);
  if (strict && problem.empty()) problem = checkpoints::problem_with_ties(tensors, offer);
  SMP_REQUIRE(problem.empty(), what, ": ", problem);
  for (const auto& source : plan.sources) {  // whatever is damaged, nothing is loaded
    if (source && offer.read_first) offer.check ? offer.check(*source) : void(offer.read(*source));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (plan.sources[i]) checkpoints::load_offered(tensors[i].tensor, offer, *plan.sources[i]);
  }
  checkpoints::warn_of_narrowing(tensors, offer.tensors, plan,
                                 base::concat(what, ": ", offer.source));
  return plan.result;
}

LoadResult load_state_dict(torch::nn::Module& module, const StateDict& dict, bool strict) {
  return load_module(module, offer_of(dict, tensors_of(module)), strict, "load_state_dict");
}

StateDict DistributedModelBase::state_dict(int pp_rank) const {
  const PublicCall call("smp::DistributedModel::state_dict");
  const auto tensors = tensors_of(base_module());
  std::vector<at::Tensor> values(tensors.size());
  gather_model(*this, tensors, pp_rank, nullptr, "state_dict",
               [&](std::size_t i, const at::Tensor& value) {
                 values[i] = owns(tensors[i].tensor) ? d2d::independent_copy(value) : value;
               });
  return dict_of(base_module(), tensors, values);
}

StateDict DistributedModelBase::local_state_dict() const {
  const auto tensors = tensors_of(base_module());
  std::vector<at::Tensor> values;
  for (const auto& [tensor, names] : tensors) {
    SMP_REQUIRE(!deferred::is_delayed(tensor),
                "local_state_dict: ", deferred::no_values_yet(names[0]));
    values.push_back(owns(tensor) ? tensor.detach() : at::Tensor());
  }
  auto part = dict_of(base_module(), tensors, values);
  mark_slices(*this, part);
  return part;
}

LoadResult DistributedModelBase::load_state_dict(const StateDict& dict, bool strict) {
  const PublicCall call("smp::DistributedModel::load_state_dict");
  between_steps("load_state_dict");
  const auto tensors = tensors_of(base_module());
  std::string problem;
  auto offer = offer_of(with_wholes(*this, dict, problem), tensors);
  if (offer.problem.empty()) offer.problem = std::move(problem);
  if (offer.problem.empty()) offer.problem = checkpoints::problem_with_repeats(tensors, offer);
  return load_model(*this, std::move(offer), strict, "load_state_dict");
}

}  // namespace smp
