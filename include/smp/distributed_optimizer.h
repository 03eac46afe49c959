// smp/distributed_optimizer.h: an optimizer that steps the parameters this rank owns
// (paper §3.2.3).
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/distributed_model.h"
#include "smp/export.h"
#include "smp/model_list.h"

namespace smp {

namespace detail {

/// What makes a LibTorch optimizer one of several ranks. Threads: the rank's.
class SMP_API OptimizerShare {
 public:
  /// Removes doubles from `optimizer`, and once models are placed the parameters of other ranks and
  /// those whose state other replicas keep; groups keep their order, numbers and options.
  /// @throws UnsupportedError for LBFGS, which needs all parameters.
  OptimizerShare(std::shared_ptr<torch::optim::Optimizer> optimizer, ModelList models);
  ~OptimizerShare();
  OptimizerShare(OptimizerShare&&) noexcept;
  OptimizerShare& operator=(OptimizerShare&&) noexcept;

  /// Steps; tensors of no model have the same values on every rank afterwards.
  void step();
  void zero_grad(bool set_to_none);
  /// To be called before each step of the optimizer. What it gives throws UsageError where a step
  /// that is not one of step() would leave replicas with different values.
  std::function<void()> step_guard() const;
  /// To be called before torch::save() and torch::load() of the optimizer, with their names. What
  /// it gives throws UsageError where a rank has a part of the optimizer only.
  std::function<void(const char* action)> archive_guard() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A LibTorch optimizer that asks before each step, whoever makes it, and before it is written or
/// read as a whole.
template <class Base>
class GuardedOptimizer final : public Base {
 public:
  explicit GuardedOptimizer(Base&& plain) : Base(std::move(plain)) {}
  void set_guards(const OptimizerShare& share) {
    step_guard_ = share.step_guard();
    archive_guard_ = share.archive_guard();
  }
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    if (step_guard_) step_guard_();
    return Base::step(std::move(closure));
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (archive_guard_) archive_guard_("torch::save()");
    Base::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (archive_guard_) archive_guard_("torch::load()");
    Base::load(archive);
  }

 private:
  std::function<void()> step_guard_;
  std::function<void(const char*)> archive_guard_;
};

}  // namespace detail

/// Wraps any torch::optim optimizer that works element by element:
///
///     smp::DistributedOptimizer optimizer(model, torch::optim::AdamW(model.parameters(), 1e-3));
///     smp::DistributedOptimizer both({generator, critic}, torch::optim::Adam(groups));
///
/// Its parameters may be those of any models, and learnable tensors of no model: such a tensor is
/// stepped by the rank whose code gave it a gradient (bodies run on the first stage), and the
/// others get its values. One that occurs twice is stepped once, and a warning says so.
///
/// A rank that owns nothing of a group has an empty group; learning-rate schedulers take
/// *optimizer. Every rank calls step() after every step of the model; nothing is sent unless there
/// are tensors of no model.
///
/// With `shard_optimizer_state` (paper App. H.1; ZeRO, Rajbhandari et al., 2020) each parameter
/// is stepped by one of its replicas, so that its state is there only: replicas get shares of about
/// the same size. A step then sums the gradient up there, where `.grad` is the mean; in the other
/// replicas it is undefined afterwards. step() sends the new values to all; that of LibTorch
/// (`optimizer->step()`) would not, and is refused. Parameters get the same bits as without.
/// Threads: the rank's.
template <class Optimizer>
class DistributedOptimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Optimizer>,
                "smp::DistributedOptimizer wraps a torch::optim optimizer");
  static constexpr bool kGuarded = !std::is_final_v<Optimizer>;
  using Guarded =
      typename std::conditional_t<kGuarded, std::type_identity<detail::GuardedOptimizer<Optimizer>>,
                                  std::type_identity<Optimizer>>::type;

 public:
  /// @param model  whose memory plan counts this optimizer's state
  /// @throws UnsupportedError  `optimizer` is LBFGS, which needs all parameters at once.
  DistributedOptimizer(DistributedModelBase& model, Optimizer optimizer)
      : DistributedOptimizer(ModelList{model}, std::move(optimizer)) {}
  DistributedOptimizer(ModelList models, Optimizer optimizer)
      : optimizer_(std::make_shared<Guarded>(std::move(optimizer))), share_(optimizer_, models) {
    if constexpr (kGuarded) static_cast<Guarded&>(*optimizer_).set_guards(share_);
  }

  /// @throws UsageError  in the body of a step, where gradients are not complete; a tensor of no
  ///                     model has gradients on two ranks, or on another one than before; state
  ///                     is sharded, and the last step was made under no_sync().
  void step() { share_.step(); }
  /// @throws UsageError  in the body of a step, where other microbatches have given gradients.
  void zero_grad(bool set_to_none = true) { share_.zero_grad(set_to_none); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  Optimizer& operator*() { return *optimizer_; }
  Optimizer* operator->() { return optimizer_.get(); }
  const std::shared_ptr<Optimizer>& shared() const { return optimizer_; }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  detail::OptimizerShare share_;
};

}  // namespace smp
