// d2d/tensors/tensor_data.h: the elements of tensors as bytes, outside of autograd and LibTorch's
// modes. Threads: any, one for each tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

namespace smp::d2d {

/// Whether elements of this type may be sent: all but quantised and sub-byte types.
bool is_sendable_dtype(c10::ScalarType dtype) noexcept;

/// @throws UnsupportedError  `tensor` has no values, is sparse, nested, quantised or of a dtype
/// that cannot be sent.
void check_sendable(const at::Tensor& tensor, std::size_t index);

/// Whether the elements are adjacent as they are stored: nothing is left to carry out.
bool is_plain(const at::Tensor& tensor);

/// What tensor.detach() gives (same storage, same version counter, no history), without the
/// dispatcher. An undefined tensor stays undefined.
at::Tensor detached(const at::Tensor& tensor);

/// `tensor` itself (or an alias) if its elements lie in memory one after another, else a copy of
/// which that is true. No autograd history; lazy conjugation and negation are carried out.
at::Tensor contiguous_data(const at::Tensor& tensor);

/// A normal (never an inference) tensor of its own storage, elements not set; of another device
/// than the CPU, at home (base/machine/home_device.h).
/// @throws UnsupportedError  LibTorch has no such device here.
at::Tensor new_tensor(at::IntArrayRef sizes, c10::ScalarType dtype,
                      c10::DeviceType device = c10::DeviceType::CPU);

/// A contiguous copy in host memory, once it is there: waits for whatever computes `tensor`.
at::Tensor on_host(const at::Tensor& tensor);
/// A copy of `tensor`, which is in host memory, at home.
at::Tensor on_device(const at::Tensor& tensor, c10::DeviceType device);

/// A copy of `tensor` that shares nothing with it: contiguous, normal, without history. Undefined
/// stays undefined.
at::Tensor independent_copy(const at::Tensor& tensor);

}  // namespace smp::d2d
