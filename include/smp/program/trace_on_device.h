// smp/program/trace_on_device.h: a trial run with values where shapes alone do not do.
#pragma once

#include "smp/detail/export.h"
#include "smp/distributed_model.h"

namespace smp {

/// Lets the trial run of the first step that uses `model` compute on the rank's device
/// (smp::device()) where it cannot be run on shapes alone: an operator that only the device has, a
/// condition on values. Otherwise modules are counted then, and a warning says why. Without effect
/// on models on CPUs, whose trial has values.
///
/// The trial on shapes is that of a copy of the process, which cannot use a device; this one is of
/// the process itself, on the first stage of the first replica, which then needs the memory of one
/// microbatch through the whole model. Parameters, buffers, gradients, modes and random numbers are
/// put back. What else the body writes stays, as captured variables and files do; members that
/// modules write are a UsageError of the step. Code that must not run twice asks
/// smp::is_tracing().
///
/// Before the step, on the rank that runs its body or on all. Threads: the rank's.
/// @param model  whose first step is still to come
/// @param on     false: as it is without a call
/// @throws UsageError  the model is placed, so that there is no trial run of it any more
SMP_API void trace_on_device(DistributedModelBase& model, bool on = true);

}  // namespace smp
