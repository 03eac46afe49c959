// server/graph/inner_outputs.h: outputs that their module has used for other outputs as well. Part
// of their gradient stays at the owner, so whoever looks at it at the caller would see the rest
// only. Threads: the rank's; walks a part of the graph, so not in a poll.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "server/protocol/tensor_flags.h"

namespace smp::server {

/// Returns one flag for each of `outputs`: true if the graph of another of `roots` leads through
/// it. Empty if this is so for none. Tensors that need no gradient are passed over.
/// @param roots  outputs whose gradients come from the caller; undefined ones are passed over
[[nodiscard]] TensorFlags inner_outputs(const std::vector<at::Tensor>& outputs,
                                        const std::vector<at::Tensor>& roots);

}  // namespace smp::server
