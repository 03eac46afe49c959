// server/values/tensor_memory.h: who else sees the memory that a tensor lies in. Threads: the
// rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace smp::server {

/// Returns the memory that `tensor` lies in; nullptr if it is undefined, or has no elements there.
const void* memory_of(const at::Tensor& tensor);

/// Returns the version of `tensor`, which grows with every write that LibTorch counts; 0 for
/// tensors that count none.
std::uint32_t version_of(const at::Tensor& tensor) noexcept;

/// True if two tensors that lie in the same memory span common elements of it.
bool overlap(const at::Tensor& a, const at::Tensor& b);

/// True if nobody else holds `tensor` or can see its bytes. A view keeps its base alive inside its
/// own metadata even under no_grad (Linear's weight gradient is a transposed product).
bool is_alone(const at::Tensor& tensor);

/// Copies those of `outputs` that somebody at the owner may write to while they are sent:
/// parameters, buffers and whatever else is no result of a recorded computation and not ours alone.
void copy_what_others_hold(std::vector<at::Tensor>& outputs);

}  // namespace smp::server
