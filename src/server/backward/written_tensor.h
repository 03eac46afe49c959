// server/backward/written_tensor.h: more words for LibTorch's error that a tensor was written after
// the forward had saved it: which one, who may have done it, what to do. Threads: the rank's.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::server {

/// Adds to the exception that is being handled, if it is that error: the node that needed the
/// tensor, the execution that runs, the parameter or buffer that it may be, and the other
/// microbatches that ran on this rank, which write what a body captured as well.
void explain_written_tensor(const torch::autograd::Node& node) noexcept;

}  // namespace smp::server
