// api/files/model_exchange.h: a model's tensors as what ranks give and take.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/module_tensors.h"
#include "smp/distributed_model.h"
#include "smp/state_dict.h"

namespace smp {

class Rank;

/// This rank outside of a step. @throws UsageError  naming `what`: inside of one
Rank& between_steps(const char* what);

/// Ranks that together hold one copy of a model, slices of distributed modules included.
d2d::Communicator model_holders(const Rank& rank);

/// Throws on every rank of all replicas if one of them has a `problem`, or if they load other
/// values: they would be trained apart. Where the first one's values count, or replicas are to
/// differ (initial_values = first), each loads what it likes. All ranks of all replicas call it.
/// @param problem      alike on all ranks of a replica
/// @param fingerprint  of what this replica loads; collective over its ranks
void agree_with_replicas(const Rank& rank, const std::exception_ptr& problem,
                         const std::function<std::uint64_t()>& fingerprint, const char* what);

/// Gives `take` the values of every parameter and buffer of `model`, once, by its number in
/// tensors_of(), on `pp_rank` or on all stages (kAllPpRanks). Tensors that this rank owns are
/// passed themselves, others are new; slices are joined to whole tensors by all ranks that hold
/// some. Every rank of the pipeline calls it, and the ranks that hold the other slices.
/// @param problem  the reason why this rank cannot take part; it is thrown on all ranks
void gather_model(const DistributedModelBase& model,
                  const std::vector<checkpoints::NamedTensor>& tensors, int pp_rank,
                  const std::exception_ptr& problem, const char* what,
                  const std::function<void(std::size_t, const at::Tensor&)>& take);

/// Loads what the ranks of model_holders() offer into `model`; each takes what it holds. Everything
/// is checked on all of them, and in all replicas, before anything is written. Tensors that have no
/// values yet take their place in the order of the program, and get the values of now at placement.
/// All of these ranks call it.
LoadResult load_model(DistributedModelBase& model, checkpoints::Offer offer, bool strict,
                      const char* what);

/// Loads what is offered into a module of this process, as smp::load_state_dict() does.
/// @param what  for messages
LoadResult load_module(torch::nn::Module& module, const checkpoints::Offer& offer, bool strict,
                       const char* what);

/// Returns an offer of the tensors of `dict`, which the offer keeps; with a problem if one of them
/// has no values.
/// @param targets  what will be written: a tensor of `dict` that lies in the memory of another
///                 one's target is offered as a copy
checkpoints::Offer offer_of(StateDict dict,
                            const std::vector<checkpoints::NamedTensor>& targets = {});

/// Returns why `tensor`, called `name`, has no values that could be loaded or saved; empty if it
/// has.
std::string problem_with_values(const std::string& name, const at::Tensor& tensor);

}  // namespace smp
