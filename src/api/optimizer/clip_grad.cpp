// api/optimizer/clip_grad.cpp: norms of all ranks, then LibTorch's formula.
#include "smp/clip_grad.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "api/model/placed_parameters.h"
#include "api/optimizer/total_norm.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

/// Notes how gradients were clipped, for replicas to compare at the next step, since they need not
/// meet here. Stages compare at once, and a rank alone has nobody to compare with.
void note_clipping(const std::string& how) {
  const auto* session = SessionParts::find_current();
  if (session == nullptr || session->rank.groups().num_replicas() == 1) return;
  session->state.facts().note_clipping(how);
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  const auto total = total_norm_of_gradients(
      parameters, {"smp::clip_grad_norm_", norm_type, max_norm, error_if_nonfinite});
  note_clipping(base::concat("to norm ", max_norm, " of order ", norm_type));
  if (!total.defined()) return 0;
  const at::NoGradGuard no_grad;
  const double norm = total.item<double>();
  SMP_REQUIRE(!error_if_nonfinite || std::isfinite(norm), "the total norm of order ", norm_type,
              " of the gradients is ", norm,
              ", so they cannot be clipped; pass error_if_nonfinite = false to scale them anyway");
  const auto scale = at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    (gradient.is_sparse() ? gradient.detach()._values() : gradient.detach()).mul_(scale);
  }
  return norm;
}

double clip_grad_norm_(ModelList models, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  return clip_grad_norm_(parameters_of(models), max_norm, norm_type, error_if_nonfinite);
}

double clip_grad_norm_(DistributedModelBase& model, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  return clip_grad_norm_(model.parameters(), max_norm, norm_type, error_if_nonfinite);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  refuse_in_step("smp::clip_grad_value_");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {  // the entries of one element are clamped as their sum
      auto summed = gradient.detach().coalesce().clone();
      summed._values().clamp_(-clip_value, clip_value);
      at::Tensor(parameter).mutable_grad() = summed;
    } else {
      gradient.detach().clamp_(-clip_value, clip_value);
    }
  }
}

void clip_grad_value_(ModelList models, double clip_value) {
  clip_grad_value_(parameters_of(models), clip_value);
}

void clip_grad_value_(DistributedModelBase& model, double clip_value) {
  clip_grad_value_(model.parameters(), clip_value);
}

bool detail::any_placed(const std::vector<at::Tensor>& parameters) noexcept {
  const auto* session = SessionParts::find_current();
  if (session == nullptr) return false;
  if (parameters.empty()) {  // the share of a rank that owns nothing: the others wait for it
    const auto& all = session->state.models();
    const bool shared =
        session->rank.topology().pp_size() > 1 || session->replicas.shards().active();
    return shared &&
           std::any_of(all.begin(), all.end(), [](auto* model) { return model->partitioned(); });
  }
  const PlacedParameters models(session->state);
  return std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return parameter.defined() && models.known(parameter);
  });
}

}  // namespace smp
