// server/values/output_shapes.h: what outputs look like that are not sent to the caller, as a note.
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "server/protocol/note.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

/// Returns a note of the dtype, device type, sizes and flag of each of `tensors`, all of which must
/// be defined.
[[nodiscard]] Note take_shapes(const std::vector<at::Tensor>& tensors,
                               const TensorFlags& requires_grad);
/// Returns tensors of the dtypes, device types and sizes in `note`, with memory for one element
/// each; appends their flags to `requires_grad`.
[[nodiscard]] std::vector<at::Tensor> shapes_of(std::string_view note, TensorFlags& requires_grad);

}  // namespace smp::server
