// server/graph/gradient_sum.h: adding up the gradients that meet at one input of a node.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::server {

/// Adds `gradient` to `sum`, in place where nobody else can see it; either may be undefined. The
/// choice of operation, and with it the bits, are those of LibTorch's engine. Grad mode is that of
/// the caller: when it is on, the addition can be differentiated.
void add_gradient(at::Tensor& sum, at::Tensor&& gradient);

}  // namespace smp::server
