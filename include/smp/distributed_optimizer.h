// smp/distributed_optimizer.h: an optimizer that steps the parameters this rank owns
// (paper §3.2.3).
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "smp/detail/export.h"
#include "smp/detail/model_list.h"
#include "smp/distributed_model.h"

namespace smp {

namespace detail {

/// Makes a LibTorch optimizer one of several ranks that share a model. Threads: the rank's.
class SMP_API OptimizerShare {
 public:
  /// Removes duplicate parameters from `optimizer`, and once models are placed the parameters of
  /// other ranks and those whose state other replicas keep; groups keep their order, numbers and
  /// options.
  /// @throws UnsupportedError  for LBFGS, which needs all parameters.
  OptimizerShare(std::shared_ptr<torch::optim::Optimizer> optimizer, ModelList models);
  ~OptimizerShare();
  OptimizerShare(OptimizerShare&&) noexcept;
  OptimizerShare& operator=(OptimizerShare&&) noexcept;

  /// Steps the optimizer; tensors of no model have the same values on every rank afterwards.
  void step();
  void zero_grad(bool set_to_none);

  /// Returns the optimizer, once what the program has added to its groups is shared out like the
  /// rest. Every rank calls it, between steps.
  torch::optim::Optimizer& shared_out();
  /// Returns the same, once it has the state that load_at_placement() brings. Suspends if some
  /// waits.
  torch::optim::Optimizer& up_to_date();
  /// Calls `put`, which puts state into the optimizer, when `model` is placed; before that, as soon
  /// as somebody needs the state. Loads come in the order of these calls.
  void load_at_placement(DistributedModelBase& model,
                         std::function<void(torch::optim::Optimizer&)> put);

 private:
  struct State;
  void set_guards();

  std::shared_ptr<State> state_;
};

/// Callbacks that run before an optimizer steps, whoever makes it step, and before it is written or
/// read as a whole. Each throws UsageError where a rank has a part of the optimizer only.
struct SMP_API OptimizerGuards {
  std::function<void()> before_step;
  std::function<void(const char* action)> before_archive;
};

/// A LibTorch optimizer of class Base that calls the guards.
template <class Base>
class GuardedOptimizer final : public Base, public OptimizerGuards {
 public:
  explicit GuardedOptimizer(Base&& plain) : Base(std::move(plain)) {}
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    if (before_step) before_step();
    return Base::step(std::move(closure));
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (before_archive) before_archive("torch::save()");
    Base::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (before_archive) before_archive("torch::load()");
    Base::load(archive);
  }
};

/// Returns a new owner of the optimizer moved out of `plain`, with guards if its class is not
/// final.
template <class Optimizer>
std::shared_ptr<Optimizer> guard_moved(Optimizer& plain) {
  if constexpr (std::is_final_v<Optimizer>) {
    return std::make_shared<Optimizer>(std::move(plain));
  } else {
    return std::make_shared<GuardedOptimizer<Optimizer>>(std::move(plain));
  }
}
/// Returns the same for an optimizer of one of LibTorch's own classes, moved out of `chosen`. An
/// optimizer of another class stays where it is, without guards.
/// @throws UsageError        `chosen` is nullptr
/// @throws UnsupportedError  it is of another class, and state is sharded
SMP_API std::shared_ptr<torch::optim::Optimizer> guard_chosen(
    std::unique_ptr<torch::optim::Optimizer> chosen);

template <class Optimizer>
std::shared_ptr<Optimizer> guard_pointee(std::unique_ptr<Optimizer> chosen) {
  if constexpr (!std::is_abstract_v<Optimizer>) {
    if (chosen && typeid(*chosen) == typeid(Optimizer)) return guard_moved(*chosen);
  }
  return std::static_pointer_cast<Optimizer>(guard_chosen(std::move(chosen)));
}

}  // namespace detail

/// Wraps any torch::optim optimizer that works element by element:
///
///     smp::DistributedOptimizer optimizer(model, torch::optim::AdamW(model.parameters(), 1e-3));
///     smp::DistributedOptimizer both({generator, critic}, torch::optim::Adam(groups));
///
/// An optimizer that is chosen at run time is given as a pointer. It lives on behind *optimizer,
/// not where it was, so make learning-rate schedulers afterwards. (With `shard_optimizer_state` an
/// optimizer of a class of your own is given as a pointer to that class, or by value.)
///
///     std::unique_ptr<torch::optim::Optimizer> chosen = choose(net->parameters());
///     smp::DistributedOptimizer optimizer(model, std::move(chosen));
///
/// Its parameters may be those of any models, and learnable tensors of no model. Such a tensor is
/// stepped by the rank whose code gave it a gradient (bodies run on the first stage), and the
/// others get its values; with replicas this is refused. A parameter that occurs twice is stepped
/// once, with a warning.
///
/// A rank that owns nothing of a group has an empty group; learning-rate schedulers take
/// *optimizer. Every rank calls step() after every step of the model; nothing is sent unless state
/// is sharded or there are tensors of no model. Groups that are added later (add_param_group(), on
/// every rank) are shared out before the next step.
///
/// With `shard_optimizer_state` (paper App. H.1; ZeRO, Rajbhandari et al., 2020) each parameter is
/// stepped by one of its replicas, so that its state is there only: replicas get shares of about
/// the same size. A step of the model then sums the gradient up there, where `.grad` is the mean;
/// in the other replicas it is undefined afterwards. step() sends the new values to all; LibTorch's
/// own `optimizer->step()` would not, and is refused. Parameters get the same bits as without.
/// Threads: the rank's.
template <class Optimizer>
class DistributedOptimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Optimizer>,
                "smp::DistributedOptimizer wraps a torch::optim optimizer");

 public:
  /// @param model      the model whose memory plan counts this optimizer's state
  /// @param optimizer  over parameters of any models; moved into this object
  /// @throws UnsupportedError  `optimizer` is LBFGS, which needs all parameters at once.
  DistributedOptimizer(DistributedModelBase& model,
                       Optimizer&& optimizer) requires(!std::is_abstract_v<Optimizer>)
      : DistributedOptimizer(ModelList{model}, std::move(optimizer)) {}
  DistributedOptimizer(ModelList models,
                       Optimizer&& optimizer) requires(!std::is_abstract_v<Optimizer>)
      : optimizer_(detail::guard_moved(optimizer)), share_(optimizer_, models) {}
  /// Wraps an optimizer that was chosen at run time. @throws UsageError  `optimizer` is nullptr
  DistributedOptimizer(DistributedModelBase& model, std::unique_ptr<Optimizer> optimizer)
      : DistributedOptimizer(ModelList{model}, std::move(optimizer)) {}
  DistributedOptimizer(ModelList models, std::unique_ptr<Optimizer> optimizer)
      : optimizer_(detail::guard_pointee(std::move(optimizer))), share_(optimizer_, models) {}

  /// Steps the parameters that this rank owns. All ranks call it, after the step of the model.
  /// @throws UsageError        it is called in the body of a step, where gradients are not
  ///                           complete; a tensor of no model has gradients on two ranks, or on
  ///                           another one than before; state is sharded after no_sync().
  /// @throws UnsupportedError  a tensor of no model has a gradient, among replicas.
  void step() { share_.step(); }
  /// Zeroes the gradients of the optimizer's parameters, or makes them undefined (`set_to_none`).
  /// @throws UsageError  it is called in the body of a step, where other microbatches have given
  ///                     gradients.
  void zero_grad(bool set_to_none = true) { share_.zero_grad(set_to_none); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  /// The wrapped LibTorch optimizer; once placed it has only the parameters that this rank steps.
  Optimizer& operator*() { return *optimizer_; }
  Optimizer* operator->() { return optimizer_.get(); }
  const std::shared_ptr<Optimizer>& shared() const { return optimizer_; }
  /// This rank's part in it, for smp::optimizer_state_dict() and its like.
  detail::OptimizerShare& share() noexcept { return share_; }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  detail::OptimizerShare share_;
};

}  // namespace smp
