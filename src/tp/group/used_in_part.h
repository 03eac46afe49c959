// tp/group/used_in_part.h: parameters that are whole on every rank of a TP_GROUP, of which each
// computes with a part.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::tp {

/// Returns `parameter` with a gradient that becomes right when it is added up over the ranks of the
/// group like that of any whole parameter. Each rank's gradient is a part of a sum: of the loss of
/// all samples, which T losses of own samples make up, so that the sum is right as it is; or of the
/// one loss of a prescaled batch, whose sum over the ranks is divided by T, so that it is
/// multiplied by T. Nothing is sent.
at::Tensor used_in_part(const at::Tensor& parameter);

}  // namespace smp::tp
