// module/replace_data.h: other data for a tensor that stays who it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::module {

/// Gives `tensor` the data of `data`, of the same dtype and shape, whose storage is shared from
/// then on; identity, leaf state and hooks stay. Unlike set_data(), from meta to real memory too.
/// Graphs that were built with `tensor` before must not be walked any more. Threads: the rank's.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace smp::module
