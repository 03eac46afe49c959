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

/// Gives `take` the values of every parameter and buffer of `model`, once, by its number in
/// tensors_of(); on `pp_rank` or on all (kAllPpRanks). Those that this rank owns come as they are,
/// others are new; of slices the whole comes, which all ranks that hold some join. Every rank of
/// the pipeline calls it, and of those that hold the other slices.
/// @param problem  why this rank cannot: thrown on all
void gather_model(const DistributedModelBase& model,
                  const std::vector<checkpoint::NamedTensor>& tensors, int pp_rank,
                  const std::exception_ptr& problem, const char* what,
                  const std::function<void(std::size_t, const at::Tensor&)>& take);

/// Loads what model_holders() offer into `model`, each of them what it holds; at placement where it
/// has no values yet. All of them call it.
LoadResult load_model(DistributedModelBase& model, checkpoint::Offer offer, bool strict,
                      const char* what);

/// The tensors of `dict`, which is kept.
checkpoint::Offer offer_of(StateDict dict);

}  // namespace smp
