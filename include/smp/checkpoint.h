// smp/checkpoint.h: safetensors files of models and optimizers, and optimizer state by name.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/detail/export.h"
#include "smp/state_dict.h"

namespace smp {

/// Writes `dict` to a safetensors file, which Python's `safetensors` reads; this rank alone does.
/// Every stage of a pipeline may call it with what state_dict() or optimizer_state_dict() gave: an
/// empty dict is another stage's there, and is not written. The file appears under its name when it
/// is complete, on disk. A tensor with several names is written once; load_safetensors() gives it
/// all of them again, other programs see the first.
/// @throws ResourceError     the disk is full or the folder not writable; an old file stays.
/// @throws UnsupportedError  a dtype that the format does not have.
SMP_API void save_safetensors(const StateDict& dict, const std::string& path);

/// The same for the whole model, from the ranks that own its parts, one tensor at a time. The file
/// is written by pp_rank 0. Every rank that holds a part calls it, between steps: those of the
/// pipeline, and with distributed modules all of smp::Group::kMp; of several replicas only the
/// first does something, which alone may call it.
/// @throws as above, on all ranks; UsageError  parameters have no values yet.
SMP_API void save_safetensors(const DistributedModelBase& model, const std::string& path,
                              const std::map<std::string, std::string>& metadata = {});

/// All tensors of a file, whoever wrote it; on this rank alone. Everything in it is checked; values
/// too, if this library wrote it.
/// @throws UsageError  not readable, no safetensors file, incomplete or damaged.
SMP_API StateDict load_safetensors(const std::string& path);

/// Loads a file into a model as DistributedModelBase::load_state_dict does, one tensor at a time.
/// Only pp_rank 0 reads it. Every rank that holds a part calls it, between steps.
SMP_API LoadResult load_safetensors(DistributedModelBase& model, const std::string& path,
                                    bool strict = true);

namespace detail {
SMP_API StateDict optimizer_state_dict(const DistributedModelBase& model,
                                       torch::optim::Optimizer& optimizer, int pp_rank);
SMP_API void load_optimizer_state_dict(DistributedModelBase& model,
                                       const std::shared_ptr<torch::optim::Optimizer>& optimizer,
                                       const StateDict& dict);
}  // namespace detail

/// What SGD, Adam, AdamW, Adagrad or RMSprop keep, from all ranks, on pp_rank `pp_rank`
/// (kAllPpRanks: on every rank; elsewhere the dict is empty): "state.<parameter>.exp_avg", and the
/// options of each group, "param_groups.0.lr". Does not depend on the number of ranks. Every rank
/// that holds a part of the model calls it, between steps; with `shard_optimizer_state` every rank
/// of the job, and each replica gets the whole state.
/// @throws UnsupportedError  another optimizer, or one over several models: make one for each
template <class Optimizer>
StateDict optimizer_state_dict(const DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, int pp_rank = 0) {
  return detail::optimizer_state_dict(model, *optimizer, pp_rank);
}

/// Puts such a dict back, options included: into an optimizer of the same kind and number of groups
/// over a model with the same names, on any number of ranks, sharded or not. `dict` is given by all
/// ranks or by some. Before placement it takes effect when the model is placed. Every rank
/// that holds a part calls it; with `shard_optimizer_state` every rank of the job.
/// @throws UsageError  another kind of optimizer, another number of groups, unknown names, shapes
///                     that differ.
template <class Optimizer>
void load_optimizer_state_dict(DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, const StateDict& dict) {
  detail::load_optimizer_state_dict(model, optimizer.shared(), dict);
}

}  // namespace smp
