// deferred/operator_hook.h: seeing every LibTorch operator that a thread runs, before LibTorch
// does. The dispatch key made for it is DeferredInit; one boxed fallback serves all hooks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <functional>

#include "base/fiber_local.h"

namespace smp::deferred {

/// Runs operators in the place of LibTorch. Threads: the one that set it.
class OperatorHook {
 public:
  virtual ~OperatorHook() = default;
  /// Replaces the arguments on top of `stack` by the results, usually by `op.callBoxed(stack)`.
  /// The hook does not see the operators that run meanwhile.
  virtual void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
};

/// The hook of the running fiber for operators that reach DispatchKey::DeferredInit, or nullptr. It
/// travels with the fiber because that key does.
const base::FiberLocal<OperatorHook>& operator_hook();

/// Sends the operators of this thread to `hook` while it lives. Scopes nest; the innermost counts.
class HookScope {
 public:
  explicit HookScope(OperatorHook& hook);

 private:
  base::FiberLocalScope<OperatorHook> hook_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// Runs an operator on delayed tensors outside of any scope: they stay delayed, get their values,
/// or are refused with an error (delayed_init.cpp).
void run_without_hook(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// Returns the index in `stack` of the first argument of `op`; its arguments are the last values.
std::size_t first_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Maps a tensor to its replacement; the second argument is true if the operator writes the tensor.
using TensorMap = std::function<at::Tensor(const at::Tensor&, bool)>;
/// Replaces each defined tensor among the arguments of `op`, in lists too, by what `map` returns.
void map_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, const TensorMap& map);
/// Calls `visit` with each defined tensor among the arguments of `op`, however deep it lies in
/// lists, dictionaries and tuples.
void visit_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit);
/// Does the same as map_arguments for results, which are all of `stack[first...]`; none of them
/// counts as written.
void map_results(torch::jit::Stack& stack, std::size_t first, const TensorMap& map);

/// True if `op` makes tensors from nothing: its schema has a device, and no tensor is given.
bool is_factory(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// True if `op` is one of LibTorch's own (aten).
bool is_of_libtorch(const c10::OperatorHandle& op);
/// True if `op` has results, and none of them is a tensor or may hold one: it asks for something.
bool asks(const c10::OperatorHandle& op);

/// Returns the argument `device` of `op` in `stack`, or nullptr if it has none.
c10::IValue* device_argument(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace smp::deferred
