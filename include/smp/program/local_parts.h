// smp/program/local_parts.h: what this rank has of a model that several ranks share.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "smp/detail/export.h"
#include "smp/distributed_model.h"
#include "smp/state_dict.h"

namespace smp {

/// Returns the modules that this rank runs, by dotted path (empty: the model itself), in order of
/// registration; before placement all. A module that runs with its parent is where the parent is.
/// Of marked modules it has those that stand in for them (smp/tp.h). The modules live as long as
/// the model. Threads: the rank's.
SMP_API std::vector<std::pair<std::string, torch::nn::Module*>> local_named_modules(
    const DistributedModelBase& model);
SMP_API std::vector<torch::nn::Module*> local_modules(const DistributedModelBase& model);

/// Returns the buffers of DistributedModelBase::local_named_buffers() without their names.
SMP_API std::vector<at::Tensor> local_buffers(const DistributedModelBase& model);

/// True if `buffer`, one of the model's, is a part of a buffer that ranks share: never, since
/// modules slice parameters alone (smp/tp/distributed_module.h); what they register as a buffer is
/// whole on every rank. Threads: the rank's. @throws UsageError  it is none of the model's.
SMP_API bool is_distributed_buffer(const DistributedModelBase& model, const at::Tensor& buffer);
/// True if `buffer`, one of the model's, is of a distributed module, or of one below it: what such
/// a module computes is of the samples of all ranks of the TP_GROUP. Threads: the rank's.
/// @throws UsageError  it is none of the model's.
SMP_API bool is_scaled_batch_buffer(const DistributedModelBase& model, const at::Tensor& buffer);

/// Returns all parameters and buffers, in the memory of the CPU, on every rank: copies, under the
/// names of smp::state_dict(). The model stays where it is and goes on. All ranks call it, outside
/// of steps. @throws as DistributedModelBase::state_dict()
SMP_API StateDict cpu(const DistributedModelBase& model);

}  // namespace smp
