// api/files/optimizer_state.cpp: an optimizer's state as tensors by name, and back.
#include <ATen/ATen.h>

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/files/model_exchange.h"
#include "api/files/optimizer_load.h"
#include "api/files/optimizer_names.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/replicas/replicas.h"
#include "api/state/optimizer_fields.h"
#include "api/state/session_state.h"
#include "checkpoint/exchange.h"
#include "deferred/delayed_tensors.h"
#include "smp/checkpoint.h"

namespace smp::detail {
namespace {

using Kind = OptimizerEntry::Kind;
using torch::optim::Optimizer;

at::Tensor scalar(std::int64_t value) { return at::scalar_tensor(value, at::kLong); }

/// Returns the values of `state`; what Adagrad makes of a parameter without values has none itself.
at::Tensor values_of(const at::Tensor& state) {
  if (deferred::is_delayed(state)) return deferred::Materialiser().values_of(state);
  return state.detach();
}

/// Adds the kind, the options of all groups, and the parameters that they have on this rank.
template <class OptimizerKind>
void add_groups(const OptimizerKind& kind, const ParameterNames& names, Optimizer& optimizer,
                StateDict& dict) {
  auto& groups = optimizer.param_groups();
  dict.insert(OptimizerEntry{Kind::kOptimizer, 0, {}, kind.name}.name(),
              scalar(static_cast<std::int64_t>(groups.size())));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto& options = static_cast<typename OptimizerKind::Options&>(groups[g].options());
    each_option(options, [&](const char* name, auto& value) {
      const auto type = std::is_same_v<decltype(value), bool&> ? at::kBool : at::kDouble;
      dict.insert(OptimizerEntry{Kind::kOption, g, {}, name}.name(),
                  at::scalar_tensor(value, type));
    });
    for (const auto& parameter : names.groups()[g]) {
      dict.insert(OptimizerEntry{Kind::kMember, g, parameter, {}}.name(),
                  at::scalar_tensor(true, at::kBool));
    }
  }
}

/// Returns what `optimizer` keeps for the parameters that this rank steps.
StateDict local_state(const ParameterNames& names, Optimizer& optimizer,
                      const MasterWeights& masters) {
  StateDict dict;
  with_kind(optimizer, [&](auto kind) {
    add_groups(kind, names, optimizer, dict);
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto master = masters.of(parameter);
        if (master.defined() && at::isReducedFloatingType(parameter.scalar_type())) {
          dict.insert(
              OptimizerEntry{Kind::kState, 0, names.of(parameter), std::string(kMasterField)}
                  .name(),
              master);
        }
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end() || !found->second) continue;
        each_state_field(
            static_cast<typename decltype(kind)::State&>(*found->second),
            [&](const char* field, auto& value) {
              auto name = OptimizerEntry{Kind::kState, 0, names.of(parameter), field}.name();
              if constexpr (std::is_same_v<decltype(value), std::int64_t&>) {
                dict.insert(std::move(name), scalar(value));
              } else if (value.defined()) {
                dict.insert(std::move(name), values_of(value));
              }
            });
      }
    }
  });
  return dict;
}

/// Ranks that together keep the state of optimizers of this pipeline's parameters.
/// @param unsharded  those that do if replicas keep all of it
d2d::Communicator state_holders(d2d::Communicator unsharded) {
  const bool sharded = Replicas::current().shards().active();
  return sharded ? Rank::current().groups().training_ranks() : std::move(unsharded);
}

/// Returns an offer of the state that this rank keeps. The state of slices becomes that of the
/// whole when it is read, by all ranks that share the parameter: with sharded state only these have
/// it.
checkpoints::Offer whole_offer(const StateDict& local, const ParameterNames& names,
                               const std::shared_ptr<const WholeTensors>& whole) {
  checkpoints::Offer offer;
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  // parameter and state
  for (const auto& [name, tensor] : local) {
    const auto entry = OptimizerEntry::parse(name);
    const auto parameter =
        entry.kind == Kind::kState ? names.parameter(entry.parameter) : at::Tensor();
    const bool alike = parameter.defined() && parameter.sizes() == tensor.sizes();
    offer.tensors.push_back(
        {name, tensor.scalar_type(), alike ? whole->sizes(parameter) : tensor.sizes().vec()});
    offer.together.push_back(alike && whole->is_slice(parameter));
    values.emplace_back(alike ? parameter : at::Tensor(), tensor);
  }
  offer.read = [values = std::move(values), whole](std::size_t i) {
    const auto& [parameter, state] = values[i];
    return parameter.defined() ? whole->joined(parameter, state) : state;
  };
  return offer;
}

}  // namespace

StateDict optimizer_state_dict(const DistributedModelBase& model, OptimizerShare& share,
                               int pp_rank) {
  constexpr const char* kWhat = "optimizer_state_dict";
  const PublicCall call("smp::optimizer_state_dict");
  auto& rank = between_steps(kWhat);
  auto& optimizer = share.up_to_date();
  const auto holders = state_holders(rank.groups().of(Group::kPp));
  const auto names = names_on_all(holders, model, optimizer, kWhat);
  const auto local = local_state(names, optimizer, SessionState::current().masters());
  checkpoints::Exchange exchange(
      holders, whole_offer(local, names, std::make_shared<const WholeTensors>(rank, model)), kWhat);
  const bool is_target = pp_rank == kAllPpRanks || rank.pp_rank() == PpRank(pp_rank);
  StateDict dict;
  exchange.deliver(std::vector<bool>(exchange.tensors().size(), is_target),
                   [&](std::size_t i, const at::Tensor& value) {
                     const auto& name = exchange.tensors()[i].name;
                     dict.insert(name, local.contains(name) ? value.clone() : value);
                   });
  return dict;
}

/// Options count at once, because schedulers read them. Before placement state waits, so that no
/// rank needs memory for that of the whole model.
void load_optimizer_state_dict(DistributedModelBase& model, OptimizerShare& share,
                               const StateDict& dict) {
  const PublicCall call("smp::load_optimizer_state_dict");
  auto& rank = between_steps("load_optimizer_state_dict");
  auto& optimizer = share.shared_out();
  std::shared_ptr<OptimizerLoad> load;
  const auto problem = checkpoints::attempt([&] {
    load =
        std::make_shared<OptimizerLoad>(model, optimizer, state_holders(model_holders(rank)), dict);
  });
  agree_with_replicas(
      rank, problem, [&] { return load->fingerprint(); }, "load_optimizer_state_dict");
  if (!model.partitioned()) {
    load->set_options(optimizer);
    share.load_at_placement(model,
                            [load](Optimizer& own) { OptimizerLoad::put(own, load->fetch(own)); });
    return;
  }
  auto state = load->fetch(optimizer);
  load->set_options(optimizer);
  OptimizerLoad::put(optimizer, std::move(state));
}

}  // namespace smp::detail
