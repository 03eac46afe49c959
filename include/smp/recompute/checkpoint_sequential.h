// smp/recompute/checkpoint_sequential.h: one call of a Sequential whose modules are computed again.
#pragma once

#include <memory>
#include <utility>

#include "smp/nn/sequential.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {

namespace detail {

/// While it lives, calls of a Sequential are grouped.
class SMP_API GroupsWhile {
 public:
  GroupsWhile(nn::SequentialImpl& module, CheckpointOptions options);
  ~GroupsWhile();
  GroupsWhile(const GroupsWhile&) = delete;
  GroupsWhile& operator=(const GroupsWhile&) = delete;

 private:
  nn::SequentialImpl& module_;
  std::shared_ptr<CallWrapper> outer_;
};

}  // namespace detail

/// Returns module.forward(inputs...), of which groups of modules keep their arguments alone, as
/// torch.utils.checkpoint_sequential does: the groups of `options.strategy`, each module by itself
/// if that is empty. Only modules that run on the calling rank: to have those on other ranks
/// computed again as well, mark the Sequential with set_activation_checkpointing() instead.
/// @throws UsageError  there is no such strategy.
template <class R = torch::Tensor, class... Inputs>
R checkpoint_sequential(const CheckpointOptions& options, nn::SequentialImpl& module,
                        Inputs&&... inputs) {
  const detail::GroupsWhile groups(module, options);
  return module.template forward<R>(std::forward<Inputs>(inputs)...);
}
template <class R = torch::Tensor, class... Inputs>
R checkpoint_sequential(const CheckpointOptions& options, const nn::Sequential& module,
                        Inputs&&... inputs) {
  return checkpoint_sequential<R>(options, *module.ptr(), std::forward<Inputs>(inputs)...);
}

}  // namespace smp
