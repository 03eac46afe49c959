// nn/gate_activation.h: what a gate goes through, for whole networks and for slices of them.
#pragma once

#include <ATen/core/Tensor.h>

#include "smp/nn/gated_mlp.h"

namespace smp::nn {

/// Applies `activation` to each element. @throws UsageError  it is none of the enumeration.
at::Tensor activated(const at::Tensor& gate, GateActivation activation);

}  // namespace smp::nn
