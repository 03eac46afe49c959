// d2d/tensors/tensor_bytes.h: how many bytes of tensors a device holds for this process, and held
// at most.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace smp::d2d {

/// Bytes as the device's allocator counts them: what tensors take of it, and not what it keeps in
/// reserve. Blocks count with what they are rounded up to.
struct TensorBytes {
  std::int64_t live = 0;  ///< now
  std::int64_t most = 0;  ///< at once, since forget_most_tensor_bytes()
};

/// Returns what `device` holds for this process: of CPUs what TensorCount knows, of others what
/// LibTorch's allocator of the device tells (CUDA and XPU have such, and some private devices).
/// Nothing where nobody counts. Threads: any.
std::optional<TensorBytes> tensor_bytes(c10::Device device);

/// What is live is the most there was. Does nothing where nobody counts. Threads: any.
void forget_most_tensor_bytes(c10::Device device);

}  // namespace smp::d2d
