// api/model/model_placement.cpp: modules first, then what they hold.
#include "api/model/model_placement.h"

#include <malloc.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "api/model/common_buffers.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/text/progress.h"
#include "deferred/delayed_tensors.h"
#include "module/path_below.h"
#include "server/values/tensor_memory.h"

namespace smp {

server::KeptState kept_state(const PartitionPlan::Row& row) {
  if (row.state == "shared") return server::KeptState::kShared;
  return row.state == "ordered" ? server::KeptState::kOrdered : server::KeptState::kNone;
}

namespace {

/// What another model's plan has said of a module stays true.
server::KeptState kept_state(const server::ModuleTable& known, const RoutedBase& module,
                             const PartitionPlan::Row& row) {
  const auto kept = kept_state(row);
  const server::ModuleId number{module.smp_place.index};
  if (kept != server::KeptState::kNone || number.value < 0) return kept;
  const bool ordered = known.find(number) == &module && known.at(number).in_order;
  return ordered ? server::KeptState::kOrdered : kept;
}

void place_modules(Rank& rank, const ModelDescription& description, const PartitionPlan& plan) {
  std::vector<RoutedBase*> placed;
  std::vector<server::KeptState> state;
  for (std::size_t i = 0; i < description.modules.size(); ++i) {
    auto* module = description.routed[i];
    // What is not routed runs with the body, where others may read what it keeps.
    if (module == nullptr && kept_state(plan.rows()[i]) != server::KeptState::kNone)
      rank.server().modules().note_state();
    if (module == nullptr) continue;
    state.push_back(kept_state(rank.server().modules(), *module, plan.rows()[i]));
    module->smp_place = {-1, PpRank(plan.rows()[i].pp_rank), description.tree.nodes[i].path};
    placed.push_back(module);
  }
  auto& modules = rank.server().modules();
  modules.attach_model(placed, state);
  if (description.routed.front() == nullptr) modules.attach_body(*description.modules.front());
}

}  // namespace

ModelPlacement::ModelPlacement(Rank& rank, const ModelDescription& description,
                               const PartitionPlan& plan,
                               const std::function<void()>& before_values) {
  place_modules(rank, description, plan);
  find_tensors(description, plan);
  free_tensors_of_others(rank);
  before_values();
  keep_own_tensors(rank);
  malloc_trim(0);  // glibc keeps freed pages of small tensors otherwise
}

void ModelPlacement::find_tensors(const ModelDescription& description, const PartitionPlan& plan) {
  for (std::size_t i = 0; i < description.modules.size(); ++i) {
    const PpRank owner(plan.rows()[i].pp_rank);
    const auto& module = *description.modules[i];
    const auto& path = description.tree.nodes[i].path;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      note({path_below(path, item.key()), item.value(), owner, server::Held::kParameter, false});
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      note({path_below(path, item.key()), item.value(), owner, server::Held::kBuffer,
            stays_everywhere(module, item.value())});
    }
  }
}

void ModelPlacement::note(const PlacedTensor& found) {
  if (!found.tensor.defined()) return;
  const auto [known, fresh] = numbers_.emplace(found.tensor.unsafeGetTensorImpl(), tensors_.size());
  if (fresh) tensors_.push_back(found);
  tensors_[known->second].holders.push_back(found.owner);
}

bool ModelPlacement::PlacedTensor::here(PpRank stage) const {
  if (held == server::Held::kParameter) return owner == stage;
  return everywhere || std::find(holders.begin(), holders.end(), stage) != holders.end();
}

/// Announces delayed tensors first, all of them: they have their names on every rank.
void ModelPlacement::free_tensors_of_others(Rank& rank) const {
  deferred::Materialiser materialiser(rank.parts().device);
  for (const auto& placed : tensors_) materialiser.announce(placed.name, placed.tensor);
  const auto stages = ranks_of(rank.topology(), Group::kPp);
  for (const auto& placed : tensors_) {
    if (placed.here(rank.pp_rank())) continue;
    rank.server().foreign().shrink(placed.name, placed.tensor, stages[placed.owner.index()],
                                   placed.held);
  }
}

void ModelPlacement::keep_own_tensors(Rank& rank) const {
  deferred::Materialiser materialiser(rank.parts().device);
  const auto stages = ranks_of(rank.topology(), Group::kPp);
  auto& server = rank.server();
  base::Progress progress("the model's first values", std::ssize(tensors_));
  for (const auto& placed : tensors_) {
    progress.at(&placed - tensors_.data());
    if (!placed.here(rank.pp_rank())) continue;
    materialiser.fill(placed.tensor);
    if (placed.owner == rank.pp_rank()) server.parameters().place(placed.tensor);
  }
  if (stages.size() == 1) return;
  std::unordered_set<const void*> weights;  // their memory, by storage
  for (const auto& placed : tensors_) {
    const bool counts = placed.held == server::Held::kParameter && placed.here(rank.pp_rank());
    if (counts) weights.insert(server::memory_of(placed.tensor));
  }
  for (const auto& placed : tensors_) {
    if (placed.held == server::Held::kParameter) continue;
    const bool here = placed.here(rank.pp_rank());
    server.copies().add(placed.name, placed.tensor, stages[placed.owner.index()], here,
                        here && weights.count(server::memory_of(placed.tensor)) > 0);
  }
}

void ModelPlacement::require_parameters_of(const torch::nn::Module& module, GlobalRank rank) const {
  for (const auto& item : module.named_parameters()) {
    SMP_REQUIRE(numbers_.count(item.value().unsafeGetTensorImpl()) > 0, "rank ", rank,
                ": parameter '", item.key(),
                "' was registered after the model was placed: no rank owns it, and no optimizer "
                "would train it. Register parameters and modules in constructors, or before "
                "smp::DistributedModel takes the model");
  }
}

std::vector<at::Tensor> ModelPlacement::held_on(PpRank stage) const {
  std::vector<at::Tensor> held;
  for (const auto& placed : tensors_) {
    if (placed.here(stage)) held.push_back(placed.tensor);
  }
  return held;
}

bool ModelPlacement::is_on(PpRank stage, const at::Tensor& tensor) const {
  const auto found = numbers_.find(tensor.unsafeGetTensorImpl());
  return found != numbers_.end() && tensors_[found->second].owner == stage;
}

}  // namespace smp
