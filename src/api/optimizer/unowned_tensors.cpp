// api/optimizer/unowned_tensors.cpp: a tensor is stepped where code gave it a gradient.
#include "api/optimizer/unowned_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "api/model/placed_parameters.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"

namespace smp {

void UnownedTensors::find(Rank& rank, torch::optim::Optimizer& optimizer,
                          const PlacedParameters& models) {
  std::unordered_map<const void*, int> holders;
  for (const auto& known : tensors_) {
    holders.emplace(known.tensor.unsafeGetTensorImpl(), known.holder);
  }
  tensors_.clear();
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (models.known(tensor)) continue;
      const auto holder = holders.find(tensor.unsafeGetTensorImpl());
      tensors_.push_back({tensor, holder == holders.end() ? -1 : holder->second});
      rank.server().parameters().place(tensor);  // its sums are ordered like a parameter's
    }
  }
}

void UnownedTensors::find_holders(const d2d::Communicator& ranks,
                                  const d2d::Communicator& replicas_of_stage) {
  std::vector<std::int64_t> own;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].tensor.grad().defined()) own.push_back(static_cast<std::int64_t>(i));
  }
  const int replicas = replicas_of_stage.size();
  if (replicas > 1) {  // one may have come another way than the others
    std::set<std::int64_t> anywhere;
    for (const auto& of_replica :
         gather_values(replicas_of_stage, own, "DistributedOptimizer::step")) {
      anywhere.insert(of_replica.begin(), of_replica.end());
    }
    own.assign(anywhere.begin(), anywhere.end());
  }
  const auto all = gather_values(ranks, own, "DistributedOptimizer::step");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto number : all[rank]) {
      const auto index = static_cast<std::size_t>(number);
      SMP_REQUIRE(index < tensors_.size(),
                  "smp::DistributedOptimizer: the optimizers of two ranks have other tensors "
                  "of no model; make them alike on every rank");
      SMP_REQUIRE_AS(UnsupportedError, replicas == 1,
                     "smp::DistributedOptimizer: a tensor of no model, shape ",
                     tensors_[index].tensor.sizes(), ", has a gradient on stage ", rank,
                     ", which is not added up over the ", replicas,
                     " replicas; register it as a parameter of a module");
      auto& [tensor, holder] = tensors_[index];
      SMP_REQUIRE(holder == -1 || holder == static_cast<int>(rank),
                  "smp::DistributedOptimizer: a tensor of no model, shape ", tensor.sizes(),
                  ", has gradients on stages ", holder, " and ", rank,
                  ", so that no rank can step it; register it as a parameter of a module");
      holder = static_cast<int>(rank);
    }
  }
}

std::vector<at::Tensor> UnownedTensors::stepped_elsewhere(int stage) const {
  std::vector<at::Tensor> elsewhere;
  for (const auto& [tensor, holder] : tensors_) {
    if (holder != -1 && holder != stage) elsewhere.push_back(tensor);
  }
  return elsewhere;
}

void UnownedTensors::give_out(const d2d::Communicator& ranks) const {
  const at::NoGradGuard no_grad;
  for (int stage = 0; stage < ranks.size(); ++stage) {
    std::vector<at::Tensor> held;
    for (const auto& [tensor, holder] : tensors_) {
      if (holder == stage) held.push_back(tensor.detach());
    }
    if (held.empty()) continue;
    d2d::Payload payload;
    for (std::size_t i = 0; i < held.size() && stage == ranks.rank(); ++i) {
      payload.tensors.push_back(held[i].clone());
    }
    const auto values = ranks.broadcast(std::move(payload), ranks.members()[stage]).tensors;
    for (std::size_t i = 0; i < held.size() && stage != ranks.rank(); ++i) {
      held[i].copy_(values.at(i));
    }
  }
}

}  // namespace smp
