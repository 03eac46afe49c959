// api/model/cast_model.cpp: see the header.
#include "api/model/cast_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/types.h>

#include <unordered_set>

#include "config/precision_types.h"
#include "smp/config.h"

namespace smp {
namespace {

bool keeps_statistics(const torch::nn::Module& module) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  return buffers.contains("running_mean") || buffers.contains("running_var");
}

bool may_be_cast(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

void cast(at::Tensor parameter, at::ScalarType type) {
  if (!parameter.defined() || !may_be_cast(parameter) || parameter.scalar_type() == type) return;
  parameter.set_data(parameter.detach().to(type));
  auto& gradient = parameter.mutable_grad();
  if (gradient.defined()) gradient = gradient.to(type);
}

}  // namespace

void cast_model(torch::nn::Module& module, const Config& config) {
  const auto type = base::parameter_type(config.precision);
  if (!type) return;
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> kept;
  const auto modules = module.modules(/*include_self=*/false);
  const auto each = [&](auto&& action) {
    action(module);
    for (const auto& child : modules) action(*child);
  };
  each([&](const torch::nn::Module& part) {
    if (!keeps_statistics(part)) return;
    for (const auto& parameter : part.parameters(/*recurse=*/false)) {
      kept.insert(parameter.unsafeGetTensorImpl());
    }
  });
  each([&](const torch::nn::Module& part) {
    for (const auto& parameter : part.parameters(/*recurse=*/false)) {
      if (kept.count(parameter.unsafeGetTensorImpl()) > 0) continue;
      cast(parameter, *type == base::ParameterType::kFloat      ? at::kFloat
                      : *type == base::ParameterType::kBFloat16 ? at::kBFloat16
                                                                : at::kHalf);
    }
  });
}

}  // namespace smp
