// fiber/torch_state.h: LibTorch's thread-local state, which must travel with a fiber (paper App.
// B). at::ThreadLocalState alone is not enough, and costs ten times what a C++ program needs.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Generator.h>
#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace smp::fiber {

/// The C++ runtime's record of exceptions being handled on this thread (Itanium ABI
/// __cxa_eh_globals). A fiber may be suspended inside a catch block.
struct ExceptionGlobals {
  void* caught = nullptr;
  unsigned uncaught = 0;
};
ExceptionGlobals& exception_globals() noexcept;

/// Grad mode, inference mode, autocast, dispatch keys, debug info and the default generators of the
/// calling thread. The rare rest (saved-tensor hooks, dispatch modes, thread-local profiler
/// callbacks) is captured only while it is in use. What LibTorch keeps for a whole process
/// (autocast's cache, numbers of threads, deterministic flags) is not part of it.
class TorchState {
 public:
  /// Captures the current state of the calling thread.
  static TorchState capture();
  /// Makes this the calling thread's state. `clean` replaces the rare fields if this holds none.
  void restore(const at::ThreadLocalState& clean) const;

 private:
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  c10::AutogradState autograd_ = c10::AutogradState::get_tls_state();
  at::ScalarType cpu_autocast_;
  at::ScalarType cuda_autocast_;
  bool autocast_cache_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> debug_ = c10::ThreadLocalDebugInfo::current();
  std::shared_ptr<at::ThreadLocalState> rare_;
  at::Generator generator_;
  at::Generator device_generator_;  // undefined: no device has one that is exchanged

  TorchState();
};

}  // namespace smp::fiber
