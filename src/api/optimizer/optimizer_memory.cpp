// api/optimizer/optimizer_memory.cpp: states by the kind of optimizer, their width by the settings.
#include "api/optimizer/optimizer_memory.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "api/optimizer/wide_steps.h"

namespace smp {
namespace {

/// Returns how many tensors of a weight's size the optimizer keeps for each weight; 2 for an
/// optimizer that it does not know.
double states_per_weight(torch::optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return sgd->momentum() > 0;
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return 2 + adam->amsgrad();
  if (auto* adam = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return 2 + adam->amsgrad();
  if (auto* prop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    return 1 + (prop->momentum() > 0) + prop->centered();
  }
  return dynamic_cast<torch::optim::AdagradOptions*>(&options) != nullptr ? 1 : 2;
}

}  // namespace

double bytes_per_weight_byte(const Config& config, torch::optim::OptimizerParamGroup& group) {
  const double states = states_per_weight(group.options());
  if (group.params().empty()) return states;
  const auto type = group.params().front().scalar_type();
  const bool half = type == at::kHalf && config.master_weights;
  const bool wide = WideSteps::wanted(config) && (half || type == at::kBFloat16);
  const bool narrow = type == at::kHalf || type == at::kBFloat16;
  const bool sums = narrow && config.fp32_grad_accumulation && config.microbatches > 1;
  const double kept = wide ? 2 * (states + (config.master_weights ? 1 : 0)) : states;
  if (sums) return kept + 2;
  // GradScaler::unscale_ makes gradients float32; in a step those are float16, with sums.
  if (half && config.precision == "fp16") return kept + 1;
  const bool casts = config.precision == "amp" && config.microbatches > 1 && type == at::kFloat;
  return kept + (casts ? 0.5 : 0);
}

}  // namespace smp
