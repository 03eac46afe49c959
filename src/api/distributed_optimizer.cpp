// api/distributed_optimizer.cpp: shrinking parameter groups to what this rank owns.
#include "smp/distributed_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "api/model_state.h"
#include "base/check.h"

namespace smp::detail {
namespace {

/// Tensors of a weight's size that the optimizer keeps for each; of one it does not know: two.
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

void follow_placement(std::shared_ptr<torch::optim::Optimizer> optimizer,
                      DistributedModelBase& model) {
  SMP_REQUIRE_AS(
      UnsupportedError, dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) == nullptr,
      "smp::DistributedOptimizer: LBFGS looks at all parameters at once, but each rank "
      "has its own only; use an optimizer that works element by element (SGD, Adam, ...)");
  if (!optimizer->param_groups().empty() && !model.partitioned()) {
    set_optimizer_ratio(model, states_per_weight(optimizer->param_groups().front().options()));
  }
  std::weak_ptr<torch::optim::Optimizer> weak = optimizer;
  model.on_placed([weak, &model] {
    const auto alive = weak.lock();
    if (!alive) return;
    for (auto& group : alive->param_groups()) {
      std::erase_if(group.params(),
                    [&](const at::Tensor& parameter) { return !model.owns(parameter); });
    }
  });
}

}  // namespace smp::detail
