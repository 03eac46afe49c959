// server/values/clone_on_write.h: copies that are made when one of the two is written.
// Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::server {

/// Returns what clone().detach() would, but the memory is copied only when LibTorch writes to
/// `tensor`, to anything else that shares its memory, or to the result.
[[nodiscard]] at::Tensor clone_on_write(const at::Tensor& tensor);

}  // namespace smp::server
