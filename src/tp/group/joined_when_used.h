// tp/group/joined_when_used.h: what the parts of all ranks make up, gathered only if something asks
// for its values. So what is cut in the same way before and after is not gathered between. Threads:
// the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Returns join_parts_for_tp(part, dim) without what lies beyond `length`, as every rank goes on
/// with it. Its values are gathered where they are first needed, by all ranks at the same place of
/// their programs; before that it has its shape, and no memory. Backward: this rank's part of the
/// gradient, nothing is sent. In inference mode, and of parts without values, it is joined at once.
/// @param dim  from 0
at::Tensor joined_when_used(const at::Tensor& part, std::int64_t dim, std::int64_t length);

/// Returns the part of which joined_when_used() has made `whole` along `dim`, if nothing has asked
/// for its values; else an undefined tensor. Nothing is sent. Its history leads through `whole`,
/// whose hooks see a gradient that is joined when it is used.
at::Tensor part_of_joined(const at::Tensor& whole, std::int64_t dim);

}  // namespace smp::tp
