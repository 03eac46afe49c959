// smp/checkpoint.h: safetensors files of models and optimizers, and optimizer state by name.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "smp/detail/export.h"
#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/state_dict.h"

namespace smp {

/// Writes `dict` to a safetensors file, which Python's `safetensors` reads, on this rank alone.
/// Every stage of a pipeline may call it with the result of state_dict() or optimizer_state_dict():
/// stages whose dict is empty write nothing. The file appears under its name only when it is
/// complete on disk. A tensor with several names is written once; load_safetensors() restores all
/// of its names, other programs see the first.
/// @throws ResourceError     the disk is full or the folder not writable; an old file stays.
/// @throws UnsupportedError  a dtype that the format does not have.
SMP_API void save_safetensors(const StateDict& dict, const std::string& path);

/// Writes the whole model to a safetensors file, one tensor at a time, from the ranks that own its
/// parts; pp_rank 0 writes the file. All ranks call it, between steps. Of several replicas only the
/// first writes, and it may make the call alone: on the ranks of its pipeline and, with distributed
/// modules, on all of smp::Group::kMp. Another replica that makes it waits for the file, and is
/// told after Config::stall_seconds if the first one does not come.
/// @throws as above, on all ranks; UsageError  parameters have no values yet; PeerLostError  a rank
///         left without calling it.
SMP_API void save_safetensors(const DistributedModelBase& model, const std::string& path,
                              const std::map<std::string, std::string>& metadata = {});

/// Reads all tensors of a safetensors file from any program, on this rank alone. The structure of
/// the file is checked, and the values too if this library wrote it.
/// @throws UsageError  the file is not readable, no safetensors file, incomplete or damaged.
SMP_API StateDict load_safetensors(const std::string& path);

/// Loads a safetensors file into a model as DistributedModelBase::load_state_dict does, one tensor
/// at a time. All ranks call it, between steps; in each replica only pp_rank 0 reads the file.
SMP_API LoadResult load_safetensors(DistributedModelBase& model, const std::string& path,
                                    bool strict = true);

namespace detail {
SMP_API StateDict optimizer_state_dict(const DistributedModelBase& model,
                                       torch::optim::Optimizer& optimizer, int pp_rank);
SMP_API void load_optimizer_state_dict(DistributedModelBase& model,
                                       const std::shared_ptr<torch::optim::Optimizer>& optimizer,
                                       const StateDict& dict);
}  // namespace detail

/// Returns the state that SGD, Adam, AdamW, Adagrad or RMSprop keep, gathered from all ranks, on
/// pp_rank `pp_rank` (kAllPpRanks: on every rank); elsewhere the dict is empty. It contains tensors
/// like "state.<parameter>.exp_avg" and the options of each group like "param_groups.0.lr", and
/// does not depend on the number of ranks. All ranks call it, between steps; one replica alone may
/// (the ranks of smp::Group::kMp), but not with `shard_optimizer_state`, where each replica gets
/// the whole state.
/// @throws UnsupportedError  another optimizer, or one over several models: make one for each
template <class Optimizer>
StateDict optimizer_state_dict(const DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, int pp_rank = 0) {
  return detail::optimizer_state_dict(model, *optimizer, pp_rank);
}

/// Loads a dict of optimizer_state_dict(), options included, into an optimizer of the same kind and
/// number of groups over a model with the same names, on any number of ranks, sharded or not.
/// `dict` is given by all ranks or by some. All ranks call it, between steps. Before placement it
/// takes effect when the model is placed.
/// @throws UsageError  another kind of optimizer, another number of groups, unknown names, shapes
///                     that differ.
template <class Optimizer>
void load_optimizer_state_dict(DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, const StateDict& dict) {
  detail::load_optimizer_state_dict(model, optimizer.shared(), dict);
}

}  // namespace smp
