// support/tensor_bytes.h: how many bytes of tensors this process holds, and held at most.
#pragma once

#include <cstdint>

namespace smp::support {

/// From now on every CPU tensor is counted, but for those made before. Call it once, before the
/// first tensor that counts; it cannot be undone.
void count_tensor_bytes();

/// Bytes of counted tensors that live now.
std::int64_t live_tensor_bytes();

/// Most bytes that lived at once since the last call, or since the start.
std::int64_t take_peak_tensor_bytes();

}  // namespace smp::support
