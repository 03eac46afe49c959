// api/files/local_slices.cpp: see the header.
#include "api/files/local_slices.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/files/model_exchange.h"
#include "api/model/model_state.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "checkpoint/module_tensors.h"
#include "deferred/delayed_tensors.h"
#include "server/modules/foreign_parameters.h"

namespace smp {
namespace {

constexpr const char* kSlices = "smp.slices";  // in the metadata of a rank's part of a model

/// Whose slices a rank's part has: "rank 1 of 2".
std::string slices_of(int holder, const d2d::Communicator& holders) {
  return base::concat("rank ", holder, " of ", holders.size());
}

/// What a rank was given.
struct Given {
  std::string mark;
  std::vector<std::string> slices;  ///< names and types
};

using Slices = std::unordered_map<std::string, at::Tensor>;  // of this rank, by name

/// The slices of `model` of which `dict` has values, as local_state_dict() gives them.
Slices slices_in(const StateDict& dict, const DistributedModelBase& model,
                 const WholeTensors& whole) {
  Slices slices;
  if (!dict.metadata.contains(kSlices)) return slices;
  for (const auto& [tensor, names] : checkpoints::tensors_of(model.base_module())) {
    if (!whole.is_slice(tensor)) continue;
    for (const auto& name : names) {
      if (!dict.contains(name)) continue;
      const auto& values = dict.at(name);
      if (server::is_foreign(values) || deferred::is_delayed(values)) continue;
      if (values.sizes() == tensor.sizes()) slices.emplace(name, tensor);
    }
  }
  return slices;
}

/// Why the slices that the holders were given cannot be joined; empty: they can. All see the same
/// of each other, so that either all join them or none.
std::string problem_with(const std::vector<Given>& all, const d2d::Communicator& holders) {
  constexpr const char* kRemedy =
      "; give whole tensors, or to each rank its own local_state_dict()";
  const auto who = [&](std::size_t i) {
    return base::concat("rank ", holders.members()[static_cast<int>(i)]);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto own = slices_of(static_cast<int>(i), holders);
    if (all[i].slices.empty() || all[i].mark == own) continue;
    return base::concat(who(i), " was given the slices of ", all[i].mark, ", and is ", own,
                        kRemedy);
  }
  const auto& first = all[0].slices;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto [one, other] = std::ranges::mismatch(first, all[i].slices);
    if (one == first.end() && other == all[i].slices.end()) continue;
    return base::concat(who(0), " was given ", one == first.end() ? "no further slice" : *one,
                        " where ", who(i), " was given ",
                        other == all[i].slices.end() ? "no further slice" : *other, kRemedy);
  }
  return {};
}

}  // namespace

void mark_slices(const DistributedModelBase& model, StateDict& part) {
  const auto& rank = Rank::current();
  if (!WholeTensors(rank, model).any()) return;
  const auto holders = rank.groups().slice_holders();
  part.metadata[kSlices] = slices_of(holders.rank(), holders);
}

StateDict with_wholes(const DistributedModelBase& model, const StateDict& dict,
                      std::string& problem) {
  const auto& rank = Rank::current();
  const WholeTensors whole(rank, model);
  if (!whole.any()) return dict;
  const auto slices = slices_in(dict, model, whole);
  Given own;
  if (!slices.empty()) own.mark = dict.metadata.at(kSlices);
  for (const auto& [name, values] : dict) {
    if (slices.contains(name)) own.slices.push_back(base::concat(name, ' ', values.scalar_type()));
  }
  const auto holders = rank.groups().slice_holders();
  problem = problem_with(gather_values(holders, own, "slices to load"), holders);
  if (!problem.empty()) return dict;
  StateDict wholes;
  wholes.metadata = dict.metadata;
  for (const auto& [name, values] : dict) {
    const auto slice = slices.find(name);
    wholes.insert(name, slice == slices.end() ? values : whole.joined(slice->second, values));
  }
  return wholes;
}

}  // namespace smp
