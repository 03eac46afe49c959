// smp/program/hooks.h: code that runs after each step, or when a model has been placed.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "smp/detail/export.h"

namespace smp {

class DistributedModelBase;

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
/// register_post_partition_hook().)
///
///     const auto counting = smp::register_post_step_hook([&] { count += smp::rank() == 0; });
///
/// @throws UsageError  inside a step; `hook` is empty.
SMP_API PostStepHook register_post_step_hook(std::function<void()> hook);

/// A hook of register_post_partition_hook(). Threads: the rank's.
class [[nodiscard]] PostPartitionHook {
 public:
  PostPartitionHook() = default;
  /// Ends it: if it has not run, it does not run any more.
  void remove() noexcept { hook_.reset(); }

 private:
  friend SMP_API PostPartitionHook register_post_partition_hook(DistributedModelBase& model,
                                                                std::function<void()> hook);
  explicit PostPartitionHook(std::shared_ptr<const std::function<void()>> hook)
      : hook_(std::move(hook)) {}

  std::shared_ptr<const std::function<void()>> hook_;
};

/// Calls `hook` as DistributedModelBase::on_placed() does, if the result lives then: once, right
/// after placement, before the first microbatch; at once if the model is placed already.
///
///     auto hook = smp::register_post_partition_hook(model, [&] { ... });
///     hook.remove();
///
/// @throws UsageError  `hook` is empty.
SMP_API PostPartitionHook register_post_partition_hook(DistributedModelBase& model,
                                                       std::function<void()> hook);

}  // namespace smp
