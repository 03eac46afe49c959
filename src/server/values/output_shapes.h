// server/values/output_shapes.h: what outputs look like that are not sent to the caller, as a note.
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "server/protocol/note.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

/// Of defined tensors: dtype, sizes, and a flag.
[[nodiscard]] Note take_shapes(const std::vector<at::Tensor>& tensors,
                               const TensorFlags& requires_grad);
/// Tensors that look so, without memory for their elements; appends their flags.
[[nodiscard]] std::vector<at::Tensor> shapes_of(std::string_view note, TensorFlags& requires_grad);

}  // namespace smp::server
