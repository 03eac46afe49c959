// d2d/tensors/tensor_data.h: the elements of tensors as bytes, outside of autograd and LibTorch's
// modes. Threads: any, one for each tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

namespace smp::d2d {

/// True if elements of this type may be sent: all but quantised types and those of
/// single bits.
bool is_sendable_dtype(c10::ScalarType dtype) noexcept;

/// Checks that `tensor`, number `index` of a frame, can be sent.
/// @throws UnsupportedError  it has no values, is sparse, nested, quantised or of a dtype that
/// cannot be sent.
void check_sendable(const at::Tensor& tensor, std::size_t index);

/// True if the elements are adjacent as they are stored: no lazy conjugation or negation is left to
/// carry out.
bool is_plain(const at::Tensor& tensor);

/// Returns the same as tensor.detach() (same storage, same version counter, no history), without
/// the dispatcher. An undefined tensor stays undefined.
at::Tensor detached(const at::Tensor& tensor);

/// Returns `tensor` itself (or an alias) if its elements lie in memory one after another, else a
/// contiguous copy. No autograd history; lazy conjugation and negation are carried out.
at::Tensor contiguous_data(const at::Tensor& tensor);

/// Makes a normal (never an inference) tensor of its own storage, with elements not set; of another
/// device than the CPU, on the home device (base/machine/home_device.h).
/// @throws UnsupportedError  LibTorch has no such device here.
at::Tensor new_tensor(at::IntArrayRef sizes, c10::ScalarType dtype,
                      c10::DeviceType device = c10::DeviceType::CPU);

/// Returns a contiguous copy in host memory, once it is there: waits for whatever computes
/// `tensor`.
at::Tensor on_host(const at::Tensor& tensor);
/// Returns a copy of `tensor`, which is in host memory, on the home device of that type.
at::Tensor on_device(const at::Tensor& tensor, c10::DeviceType device);

/// Returns a copy of `tensor` that shares nothing with it: contiguous, normal, without history.
/// Undefined stays undefined.
at::Tensor independent_copy(const at::Tensor& tensor);

}  // namespace smp::d2d
