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

/// What the running fiber does with operators that reach DispatchKey::DeferredInit, or nullptr. It
/// travels with a fiber because that key does.
const base::FiberLocal<OperatorHook>& operator_hook();

/// Operators of this thread go to `hook` while it lives; scopes nest, the innermost counts.
class HookScope {
 public:
  explicit HookScope(OperatorHook& hook);

 private:
  base::FiberLocalScope<OperatorHook> hook_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// What happens to delayed tensors outside of any scope: they stay delayed, get their values or are
/// refused (delayed_init.cpp).
void run_without_hook(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// The arguments of `op`, which are the last values of `stack`.
std::size_t first_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Gets a tensor and whether the operator writes it.
using TensorMap = std::function<at::Tensor(const at::Tensor&, bool)>;
/// Puts what `map` returns in the place of each defined tensor among the arguments of `op`, in
/// lists too.
void map_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, const TensorMap& map);
/// The same for results, which are all of `stack[first...]`; nothing of them counts as written.
void map_results(torch::jit::Stack& stack, std::size_t first, const TensorMap& map);

/// Whether `op` makes tensors from nothing: the schema has a device, and no tensor is given.
bool is_factory(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Where the argument `device` of `op` lies in `stack`, or nullptr if it has none.
c10::IValue* device_argument(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace smp::deferred
