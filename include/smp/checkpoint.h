// smp/checkpoint.h: safetensors files of models and optimizers, and optimizer state by name.
#pragma once

#include <map>
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
/// of its names, other programs see the first. Equal dicts make equal bytes.
/// @throws ResourceError     the disk is full or the folder not writable; an old file stays.
/// @throws UnsupportedError  a dtype that the format does not have.
/// @throws UsageError        a name or the metadata is no UTF-8 text; metadata under the names
///                           "smp.xxh64" or "smp.aliases", which this library writes itself.
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

/// Reads all tensors of safetensors files from any program, on this rank alone. The structure of
/// the files is checked, and the values too if this library wrote them.
/// @param path    a file; an index of several files (model.safetensors.index.json); or a folder
///                with a model.safetensors or such an index
/// @param strict  tensors that cannot be read are an error; else they are left out, with a warning
/// @throws UsageError        a file is not readable, no safetensors file, incomplete or damaged; an
///                           index and its files disagree, or the two models of a folder.
/// @throws UnsupportedError  naming tensors of a type that LibTorch does not have, and parts of
///                           tensors, as torch's distributed checkpoint writes.
SMP_API StateDict load_safetensors(const std::string& path, bool strict = true);

/// Loads safetensors files, as above, into a model as DistributedModelBase::load_state_dict does,
/// one tensor at a time. Of a placed model each stage reads what it owns, where its `path` names
/// the very files of pp_rank 0; that one reads all else, and all of a model that is not placed.
/// With delayed initialisation it reads once more when the model is placed, so the files must stay
/// until then as they are. All ranks call it, between steps.
SMP_API LoadResult load_safetensors(DistributedModelBase& model, const std::string& path,
                                    bool strict = true);

namespace detail {
SMP_API StateDict optimizer_state_dict(const DistributedModelBase& model, OptimizerShare& share,
                                       int pp_rank);
SMP_API void load_optimizer_state_dict(DistributedModelBase& model, OptimizerShare& share,
                                       const StateDict& dict);
}  // namespace detail

/// Returns the state that SGD, Adam, AdamW, Adagrad or RMSprop keep, gathered from all ranks, on
/// pp_rank `pp_rank` (kAllPpRanks: on every rank); elsewhere the dict is empty. It contains tensors
/// like "state.<parameter>.exp_avg", the options of each group like "param_groups.0.lr", and a
/// true "param_groups.0.params.<parameter>" for each parameter of a group. It does not depend on
/// the number of ranks. All ranks call it, between steps; one replica alone may (the ranks of
/// smp::Group::kMp), but not with `shard_optimizer_state`, where each replica gets the whole state.
/// @throws UnsupportedError  another optimizer, or one over several models: make one for each
template <class Optimizer>
StateDict optimizer_state_dict(const DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, int pp_rank = 0) {
  return detail::optimizer_state_dict(model, optimizer.share(), pp_rank);
}

/// Loads a dict of optimizer_state_dict(), options included, into an optimizer of the same kind
/// over a model with the same names, on any number of ranks, sharded or not. A group takes the
/// options of the group of the dict that has the same parameters, whatever their order. (Parameters
/// of no model have no names: their order in the groups counts, and groups of nothing else are told
/// apart by the number of them, then by their order. A dict of an earlier version does not say
/// which parameters a group has; its groups are told apart by their options other than lr.)
/// `dict` is given by all ranks or by some; every replica is given the same values. What the
/// program does to it afterwards changes nothing. Options are set at once, state too or, where the
/// model is not placed yet, then. All ranks call it, between steps.
/// @throws UsageError        another kind of optimizer; groups of other parameters, or that cannot
///                           be told apart; names that are unknown or missing, shapes and types
///                           that differ, options that LibTorch refuses. Nothing is loaded then.
/// @throws UnsupportedError  as optimizer_state_dict()
template <class Optimizer>
void load_optimizer_state_dict(DistributedModelBase& model,
                               DistributedOptimizer<Optimizer>& optimizer, const StateDict& dict) {
  detail::load_optimizer_state_dict(model, optimizer.share(), dict);
}

}  // namespace smp
