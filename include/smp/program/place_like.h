// smp/program/place_like.h: a model whose weights another one's go into, on the same ranks.
#pragma once

#include "smp/detail/export.h"
#include "smp/distributed_model.h"

namespace smp {

/// Places every module of `model` on the stage that runs the module of the same path in `other`,
/// which is placed: then a rank that owns a parameter of the one owns that of the other, and can
/// compute the one from the other. So for a moving average of weights, a target network, a teacher
/// of the same kind:
///
///     model.on_placed([&] { smp::place_like(average, model); });
///     ...                                      // between steps:
///     for (std::size_t i = 0; i < kept.size(); ++i) {   // both nets' parameters()
///       if (average.owns(kept[i])) kept[i].mul_(0.999).add_(weights[i], 0.001);
///     }
///
/// Modules that only `model` has go with the nearest one above them. Where the first step of
/// `other` uses `model` too, both are placed by it, and a callback comes too late: call
/// `other.place()` before, and place_like() then. Every rank calls it alike, before `model` is
/// placed; it acts as set_partition() of all these modules does. Threads: the rank's.
/// @throws UsageError  `other` is not placed, or `model` is; a module of `other` is not in `model`,
///                     with its path
SMP_API void place_like(DistributedModelBase& model, const DistributedModelBase& other);

}  // namespace smp
