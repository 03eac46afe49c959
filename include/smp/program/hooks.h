// smp/program/hooks.h: code that runs after each step.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "smp/detail/export.h"

namespace smp {

/// A hook of register_post_step_hook(): it runs as long as the object lives. Threads: the rank's.
class [[nodiscard]] PostStepHook {
 public:
  PostStepHook() = default;
  /// Ends it; a running one still ends its work.
  void remove() noexcept { hook_.reset(); }

 private:
  friend SMP_API PostStepHook register_post_step_hook(std::function<void()> hook);
  explicit PostStepHook(std::shared_ptr<const std::function<void()>> hook)
      : hook_(std::move(hook)) {}

  std::shared_ptr<const std::function<void()>> hook_;
};

/// Calls `hook` on this rank after each step that ends well, training or not, before the call of
/// the step returns: models are placed, gradients are in `.grad`, and collectives may be called if
/// every rank has the hook. Hooks run in the order of registration; steps that a hook
/// calls run none. What one throws leaves the call
/// of the step, and later hooks do not run. (What shall run once, when a model is placed:
/// DistributedModelBase::on_placed().)
///
///     const auto counting = smp::register_post_step_hook([&] { count += smp::rank() == 0; });
///
/// @throws UsageError  inside a step; `hook` is empty.
SMP_API PostStepHook register_post_step_hook(std::function<void()> hook);

}  // namespace smp
