// module/replace_data.h: other data for a tensor that stays who it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::module {

/// Gives `tensor` the data of `data`, which has the same dtype and shape, and whose storage both
/// share from then on; identity, leaf state and hooks stay. Unlike set_data(), it also works from
/// meta to real memory. Graphs built with `tensor` before must not be walked any more. Threads: the
/// rank's.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace smp::module
