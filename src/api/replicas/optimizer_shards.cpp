// api/replicas/optimizer_shards.cpp: slices first, which fewer ranks can own; then what is left
// evens out.
#include "api/replicas/optimizer_shards.h"

#include <algorithm>

#include "api/model/describe_model.h"
#include "api/rank/rank.h"
#include "api/state/session_state.h"
#include "dp/owner_values.h"
#include "dp/shard_plan.h"
#include "server/values/tensor_memory.h"
#include "smp/distributed_model.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

/// Returns the bytes of the parameters that are trained, or of those that are not; 0 for the
/// others.
std::vector<std::int64_t> bytes_of(const std::vector<at::Tensor>& parameters, bool trained) {
  std::vector<std::int64_t> bytes;
  for (const auto& parameter : parameters) {
    const bool counts = parameter.requires_grad() == trained;
    bytes.push_back(counts ? static_cast<std::int64_t>(parameter.nbytes()) : 0);
  }
  return bytes;
}

/// Returns the owners, balanced by the state that an optimizer will keep, up to a factor. Frozen
/// parameters have none: they are dealt out on top, so that the load evens out if they are trained
/// later, and do not count in `loads`.
std::vector<int> deal_out(const std::vector<at::Tensor>& parameters,
                          std::vector<std::int64_t>& loads) {
  auto owners = dp::plan_shards(bytes_of(parameters, true), loads);
  auto loads_with_frozen = loads;
  const auto of_frozen = dp::plan_shards(bytes_of(parameters, false), loads_with_frozen);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad()) owners[i] = of_frozen[i];
  }
  return owners;
}

/// True if `parameter` lies in the memory of one of `dealt`, at least in part.
bool lies_in(const OptimizerShards::ByMemory& dealt, const at::Tensor& parameter) {
  const auto* const memory = server::memory_of(parameter);
  const auto found = dealt.find(memory);
  return memory != nullptr && found != dealt.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const auto& other) { return server::overlap(other, parameter); });
}

/// Of all models.
std::vector<tp::SlicedParameters> slices_of(const Rank& rank, const SessionState& state) {
  std::vector<tp::SlicedParameters> slices;
  if (rank.topology().tp_size() == 1) return slices;
  for (const auto* model : state.models()) slices.emplace_back(model->base_module());
  return slices;
}

}  // namespace

bool OptimizerShards::active() const noexcept {
  return rank_.config().shard_optimizer_state && rank_.groups().num_replicas() > 1;
}

void OptimizerShards::note_shares(ModelDescription& model) const {
  if (!rank_.config().shard_optimizer_state) return;
  const tp::SlicedParameters slices(*model.modules.front());
  const auto& topology = rank_.topology();
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const auto own = model.modules[m]->named_parameters(/*recurse=*/false);
    for (const auto& [name, number] : model.tree.nodes[m].parameters) {
      auto& parameter = model.tree.parameters[static_cast<std::size_t>(number)];
      parameter.state_shares = slices.contain(own[name]) ? topology.rdp_size() : topology.dp_size();
    }
  }
}

void OptimizerShards::deal(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> slices, whole, within;
  const auto models = slices_of(rank_, state_);
  auto dealt = dealt_by_memory();
  for (const auto& parameter : parameters) {
    if (find(parameter) != nullptr) continue;
    const bool sliced = std::any_of(models.begin(), models.end(), [&](const auto& of_model) {
      return of_model.contain(parameter);
    });
    (lies_in(dealt, parameter) ? within : sliced ? slices : whole).push_back(parameter);
    dealt[server::memory_of(parameter)].push_back(parameter);
  }
  deal_slices(slices);
  deal_whole(whole);
  for (const auto& parameter : within) follow(dealt, parameter);
}

void OptimizerShards::follow(const ByMemory& dealt, const at::Tensor& parameter) {
  const Share* first = nullptr;  // not that which comes first in the map: replicas decide alike
  for (const auto& other : dealt.at(server::memory_of(parameter))) {
    const auto* share = server::overlap(other, parameter) ? find(other) : nullptr;
    if (share != nullptr && (first == nullptr || share->owner < first->owner)) first = share;
  }
  const Share found = *first;
  add(parameter, found.owner, found.here, found.slice);
}

OptimizerShards::ByMemory OptimizerShards::dealt_by_memory() const {
  ByMemory by_memory;
  for (const auto& [impl, share] : shares_) {
    if (auto locked = share.parameter.lock()) {
      const at::Tensor parameter(std::move(locked));
      by_memory[server::memory_of(parameter)].push_back(parameter);
    }
  }
  return by_memory;
}

void OptimizerShards::deal_slices(const std::vector<at::Tensor>& slices) {
  const auto replicas = rank_.groups().slice_replicas();
  slice_loads_.resize(static_cast<std::size_t>(replicas.size()));
  add(slices, deal_out(slices, slice_loads_), replicas, true);
}

void OptimizerShards::deal_whole(const std::vector<at::Tensor>& parameters) {
  const auto replicas = rank_.groups().replicas();
  whole_loads_.resize(static_cast<std::size_t>(replicas.size()));
  auto loads = whole_loads_;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto rank = replicas.members()[static_cast<int>(i)].value();
    loads[i] += slice_loads_[static_cast<std::size_t>(rank_.topology().coordinates(rank).rdp)];
  }
  const auto owners = deal_out(parameters, loads);
  const auto bytes = bytes_of(parameters, true);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    whole_loads_[static_cast<std::size_t>(owners[i])] += bytes[i];
  }
  add(parameters, owners, replicas, false);
}

void OptimizerShards::add(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
                          const d2d::Communicator& replicas, bool slices) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    add(parameters[i], owners[i], owners[i] == replicas.rank(), slices);
  }
}

void OptimizerShards::add(const at::Tensor& parameter, int owner, bool here, bool slice) {
  shares_.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Share{decltype(Share::parameter)(parameter.getIntrusivePtr()), owner, here, slice});
}

const OptimizerShards::Share* OptimizerShards::find(const at::Tensor& parameter) const {
  const auto found = shares_.find(parameter.unsafeGetTensorImpl());
  if (found == shares_.end() || found->second.parameter.expired()) return nullptr;
  return &found->second;
}

int OptimizerShards::owner_of(const at::Tensor& parameter) const {
  const auto* share = find(parameter);
  return share == nullptr ? -1 : share->owner;
}

std::vector<int> OptimizerShards::owners_of(const std::vector<at::Tensor>& parameters) const {
  std::vector<int> owners;
  for (const auto& parameter : parameters) owners.push_back(owner_of(parameter));
  return owners;
}

bool OptimizerShards::is_elsewhere(const at::Tensor& parameter) const {
  const auto* share = find(parameter);
  return share != nullptr && !share->here;
}

bool OptimizerShards::is_here(const at::Tensor& parameter) const {
  const auto* share = find(parameter);
  return share != nullptr && share->here;
}

bool OptimizerShards::is_slice(const at::Tensor& parameter) const {
  const auto* share = find(parameter);
  return share != nullptr && share->slice;
}

void OptimizerShards::take_values(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> slices, whole;
  for (const auto& parameter : parameters) {
    if (owner_of(parameter) < 0) continue;
    (is_slice(parameter) ? slices : whole).push_back(parameter);
  }
  dp::OwnerValues values(rank_.bucket_bytes());
  values.take(rank_.groups().slice_replicas(), slices, owners_of(slices));
  values.take(rank_.groups().replicas(), whole, owners_of(whole));
  values.finish();
}

}  // namespace smp
