// deferred/meta_scope.h: running a model on tensors that have a shape but no memory, to learn its
// costs (paper App. C.1).
#pragma once

#include <functional>

#include "deferred/delayed_tensors.h"
#include "deferred/operator_hook.h"

namespace smp::deferred {

/// While it lives, what operators of this thread make is meta: factories such as torch::arange
/// unless they name the CPU, and every result of an operator with an operand that is meta or of
/// another device than the CPU: real tensors count by their shape, and no device is touched.
/// Nothing is recorded, nothing is drawn from a generator. torch::equal goes by identity. Delayed
/// parameters take part as they are, and stay so.
class MetaScope final : private OperatorHook {
 public:
  /// What code is given that asks for a value (`.item()`, a condition on a tensor), or by values
  /// how much there is (nonzero, unique, masks as indices): all there could be, unless it is 0.
  using Value = std::function<double()>;

  /// @param value  none: whoever asks gets LibTorch's NotImplementedError
  explicit MetaScope(Value value = {});

 private:
  void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  bool answer(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  bool answer_how_many(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  void open_masks(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

  Value value_;
  HookScope scope_;
};

}  // namespace smp::deferred
