// server/promises/later_tensor.h: tensors of module/later_tensor.h, as guards make them. Threads:
// the rank's.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::server {

/// Gives `tensor` its values if it is one of module::later_tensor() that has none; does nothing to
/// any other. May suspend.
void bring_values(const at::Tensor& tensor);

}  // namespace smp::server
