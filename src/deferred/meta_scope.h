// deferred/meta_scope.h: running a model on tensors that have a shape but no memory, to learn its
// costs (paper App. C.1).
#pragma once

#include <functional>

#include "deferred/delayed_tensors.h"
#include "deferred/example.h"
#include "deferred/operator_hook.h"

namespace smp::deferred {

/// Makes operators of this thread produce meta tensors while it lives: factories such as
/// torch::arange unless they name the CPU, and every operator with an operand that is meta or on
/// another device than the CPU. Such real tensors count by their shape, and no device is touched.
/// Nothing is recorded, nothing is drawn from a generator. torch::equal compares identity, not
/// values. Delayed parameters take part as they are, and stay so. Operators that cannot do with
/// shapes are run on values that are made up (example.h); UnsupportedError if that fails as well.
class MetaScope final : private OperatorHook {
 public:
  /// Returns the number given to code that asks for a value (`.item()`, a condition on a tensor).
  /// For operators whose results have as many elements as values decide (nonzero, unique, masks as
  /// indices) it decides: 0 gives the fewest, anything else all there could be.
  using Value = std::function<double()>;

  /// @param value  empty: code that asks for a value gets LibTorch's NotImplementedError, and so
  ///               does every operator that LibTorch cannot run on shapes
  explicit MetaScope(Value value = {});

 private:
  void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  bool answer(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  bool answer_how_many(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  Example example_for(const c10::OperatorHandle& op) const;
  void run_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  bool answer_question(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  void open_masks(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

  Value value_;
  HookScope scope_;
};

}  // namespace smp::deferred
