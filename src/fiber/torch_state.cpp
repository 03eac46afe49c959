// fiber/torch_state.cpp: capture and restore of what a C++ program changes.
#include "fiber/torch_state.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <cxxabi.h>

#include "base/random.h"

namespace smp::fiber {
namespace {

bool rare_state_in_use() {
  const auto& callbacks = at::get_record_function_tls_();
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  return !callbacks.sorted_tls_callbacks_.empty() || !callbacks.tls_record_function_enabled_ ||
         !hooks.stack.empty() || hooks.disabled_error_message || hooks.is_tracing ||
         at::functorch::functorchTLSAccessor() || c10::impl::TorchDispatchModeTLS::any_modes_set();
}

}  // namespace

ExceptionGlobals& exception_globals() noexcept {
  return *reinterpret_cast<ExceptionGlobals*>(abi::__cxa_get_globals());
}

TorchState::TorchState()
    : cpu_autocast_(at::autocast::get_autocast_dtype(at::kCPU)),
      cuda_autocast_(at::autocast::get_autocast_dtype(at::kCUDA)),
      autocast_cache_(at::autocast::is_autocast_cache_enabled()),
      generator_(base::default_generator()) {
  if (const auto* const of_device = base::device_generator()) device_generator_ = *of_device;
  if (rare_state_in_use()) rare_ = std::make_shared<at::ThreadLocalState>();
}

TorchState TorchState::capture() { return TorchState(); }

void TorchState::restore(const at::ThreadLocalState& clean) const {
  if (rare_) {
    at::ThreadLocalState::setThreadLocalState(*rare_);
  } else if (rare_state_in_use()) {
    at::ThreadLocalState::setThreadLocalState(clean);
  }
  c10::impl::_force_tls_local_dispatch_key_set(keys_);
  c10::AutogradState::set_tls_state(autograd_);
  at::autocast::set_autocast_dtype(at::kCPU, cpu_autocast_);
  at::autocast::set_autocast_dtype(at::kCUDA, cuda_autocast_);
  at::autocast::set_autocast_cache_enabled(autocast_cache_);
  if (c10::ThreadLocalDebugInfo::current() != debug_) {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(debug_);
  }
  base::default_generator() = generator_;
  auto* const of_device = base::device_generator();
  if (of_device != nullptr && device_generator_.defined()) *of_device = device_generator_;
}

}  // namespace smp::fiber
