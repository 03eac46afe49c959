// smp/distributed_optimizer.h: an optimizer that steps the parameters this rank owns
// (paper §3.2.3).
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/distributed_model.h"
#include "smp/export.h"

namespace smp {

namespace detail {

/// Drops the parameters of other ranks from `optimizer` once the model is placed; groups keep their
/// order, numbers and options. @throws UnsupportedError for LBFGS, which needs all parameters.
SMP_API void follow_placement(std::shared_ptr<torch::optim::Optimizer> optimizer,
                              DistributedModelBase& model);

}  // namespace detail

/// Wraps any torch::optim optimizer that works element by element:
///
///     smp::DistributedOptimizer optimizer(model, torch::optim::AdamW(model.parameters(), 1e-3));
///
/// A rank that owns nothing of a group has an empty group; learning-rate schedulers take
/// *optimizer. Every rank calls step() after every step; nothing is sent. Threads: the rank's.
template <class Optimizer>
class DistributedOptimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Optimizer>,
                "smp::DistributedOptimizer wraps a torch::optim optimizer");

 public:
  /// @param model  whose parameters `optimizer` has; until it is placed it must outlive this object
  /// @throws UnsupportedError  `optimizer` is LBFGS, which needs all parameters at once.
  DistributedOptimizer(DistributedModelBase& model, Optimizer optimizer)
      : optimizer_(std::make_shared<Optimizer>(std::move(optimizer))) {
    detail::follow_placement(optimizer_, model);
  }

  void step() { optimizer_->step(); }
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  Optimizer& operator*() { return *optimizer_; }
  Optimizer* operator->() { return optimizer_.get(); }

 private:
  std::shared_ptr<Optimizer> optimizer_;
};

}  // namespace smp
