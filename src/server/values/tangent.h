// server/values/tangent.h: derivatives of forward-mode differentiation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::server {

/// True if `tensor` has a tangent, its derivative in forward-mode differentiation: operators take
/// it along, and nothing else does. Threads: any.
inline bool has_tangent(const at::Tensor& tensor) {
  constexpr std::uint64_t kLevel = 0;  // LibTorch has no other
  return tensor.defined() && tensor._fw_grad(kLevel).defined();
}

}  // namespace smp::server
