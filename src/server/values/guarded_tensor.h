// server/values/guarded_tensor.h: tensors that answer for themselves: LibTorch asks their guard
// before any operator gets them (docs/design.md, Foreign parameters).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <string>

namespace smp::server {

/// Is asked before an operator gets a tensor. Lives in the TensorImpl that it guards, and in
/// shallow copies of it.
class TensorGuard : public c10::BackendMeta {
 public:
  /// Called when an operator is about to get the guarded `tensor`; `writes` is true if it changes
  /// it. Makes it a plain tensor (unguard()) or throws, unless it only looks on (watch_uses()).
  virtual void before_use(const at::Tensor& tensor, const std::string& op, bool writes) = 0;
  /// Returns, after before_use(), the tensor that operators get in place of the guarded one;
  /// undefined: they get that itself.
  virtual at::Tensor stand_in() const { return {}; }
  /// True if the tensor is an ordinary one but for the guard, which stays and looks on.
  virtual bool looks_on() const noexcept { return false; }
};

/// The dispatch key of guarded tensors: it comes before autograd, autocast and devices, and nothing
/// else uses it.
inline constexpr auto kGuarded = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Guards `tensor` and frees its memory; it keeps shape, dtype and device. It stays the same
/// TensorImpl: for optimizers, module dictionaries, `grad()`, `requires_grad_()` and hooks it is
/// the same leaf as before. Graphs that were built with it must not be walked any more.
/// @param data_text  the text of the error that code gets which asks for its memory Needs a dense
/// tensor (can_be_guarded()).
void guard_without_memory(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard,
                          const std::string& data_text);
/// Guards `tensor`, whose memory stays, so that code which asks for its address gets it. unguard()
/// puts `tensor` back to what it was.
void guard_with_memory(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard);

/// Has `guard` asked before each use of `tensor`, which stays as it is: memory, kernels, gradients.
/// Shallow copies, as detach() makes them, keep the guard when unwatch_uses() has taken it away.
void watch_uses(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard);
void unwatch_uses(const at::Tensor& tensor) noexcept;

/// Gives `tensor`, guarded until now, the data of `plain`.
void unguard(const at::Tensor& tensor, const at::Tensor& plain);

/// Returns the guard of `tensor`, or nullptr if it has none.
[[nodiscard]] TensorGuard* guard_of(const at::Tensor& tensor) noexcept;
/// True if `tensor` is of LibTorch's usual kind: neither sparse, quantised nor nested.
[[nodiscard]] bool can_be_guarded(const at::Tensor& tensor) noexcept;

}  // namespace smp::server
