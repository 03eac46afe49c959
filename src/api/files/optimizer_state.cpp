// api/files/optimizer_state.cpp: an optimizer's state as tensors by name, and back.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "api/files/model_exchange.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/replicas/replicas.h"
#include "api/state/optimizer_fields.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "smp/checkpoint.h"

namespace smp::detail {
namespace {

using checkpoint::Exchange;
using checkpoint::TensorInfo;
using torch::optim::Optimizer;

constexpr const char* kState = "state.";
constexpr const char* kGroups = "param_groups.";
constexpr const char* kKind = "optimizer.";

/// The names under which an optimizer's parameters are known: those of the model; the n-th
/// parameter of group 0 that is not the model's is "param_groups.0.n".
class ParameterNames {
 public:
  ParameterNames(const DistributedModelBase& model, Optimizer& optimizer) {
    for (const auto& [tensor, names] : checkpoint::tensors_of(model.base_module())) {
      first_.emplace(tensor.unsafeGetTensorImpl(), names[0]);
      for (const auto& name : names) add(name, names[0], tensor);
    }
    refuse_other_models(model, optimizer);
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      std::size_t others = 0;
      for (const auto& parameter : optimizer.param_groups()[g].params()) {
        if (first_.count(parameter.unsafeGetTensorImpl()) != 0) continue;
        const auto name = base::concat(kGroups, g, '.', others++);
        first_.emplace(parameter.unsafeGetTensorImpl(), name);
        add(name, name, parameter);
      }
    }
  }

  const std::string& of(const at::Tensor& parameter) const {
    return first_.at(parameter.unsafeGetTensorImpl());
  }
  /// Returns the parameter that has `name` among its names, or an undefined tensor.
  at::Tensor parameter(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second.second;
  }

 private:
  void add(const std::string& name, const std::string& first, const at::Tensor& tensor) {
    tensors_.emplace(name, std::pair(first, tensor));
  }
  static void refuse_other_models(const DistributedModelBase& model, Optimizer& optimizer) {
    std::unordered_set<const void*> known;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
    }
    for (const auto& [tensor, names] : checkpoint::tensors_of(model.base_module())) {
      known.erase(tensor.unsafeGetTensorImpl());
    }
    for (const auto* other : SessionState::current().models()) {
      if (other == &model) continue;
      for (const auto& [tensor, names] : checkpoint::tensors_of(other->base_module())) {
        SMP_REQUIRE_AS(UnsupportedError, known.count(tensor.unsafeGetTensorImpl()) == 0,
                       "the state of an optimizer over several models has no unique names (",
                       names[0], " is another model's); use an optimizer for each model");
      }
    }
  }

  std::unordered_map<const void*, std::string> first_;
  std::unordered_map<std::string, std::pair<std::string, at::Tensor>> tensors_;
};

/// Calls `action(kind)`. @throws UnsupportedError  the optimizer is of no known kind
template <class Action>
void require_kind(Optimizer& optimizer, Action&& action) {
  SMP_REQUIRE_AS(UnsupportedError, with_kind(optimizer, action),
                 "the state of this optimizer cannot be saved by name: it is none of SGD, Adam, "
                 "AdamW, Adagrad and RMSprop");
}

at::Tensor scalar(std::int64_t value) { return at::scalar_tensor(value, at::kLong); }

StateDict options_of(Optimizer& optimizer) {
  StateDict dict;
  require_kind(optimizer, [&](auto kind) {
    dict.insert(std::string(kKind) + kind.name,
                scalar(static_cast<std::int64_t>(optimizer.param_groups().size())));
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      auto& options =
          static_cast<typename decltype(kind)::Options&>(optimizer.param_groups()[g].options());
      each_option(options, [&](const char* name, auto& value) {
        dict.insert(base::concat(kGroups, g, '.', name),
                    at::scalar_tensor(
                        value, std::is_same_v<decltype(value), bool&> ? at::kBool : at::kDouble));
      });
    }
  });
  return dict;
}

/// Returns what `optimizer` keeps for the parameters that this rank steps.
StateDict local_state(const DistributedModelBase& model, Optimizer& optimizer) {
  auto dict = options_of(optimizer);
  const ParameterNames names(model, optimizer);
  require_kind(optimizer, [&](auto kind) {
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end() || !found->second) continue;
        each_state_field(static_cast<typename decltype(kind)::State&>(*found->second),
                         [&](const char* field, auto& value) {
                           const auto name = base::concat(kState, names.of(parameter), '.', field);
                           if constexpr (std::is_same_v<decltype(value), std::int64_t&>) {
                             dict.insert(name, scalar(value));
                           } else if (value.defined()) {
                             dict.insert(name, value.detach());
                           }
                         });
      }
    }
  });
  return dict;
}

/// A name like "state.encoder.weight.exp_avg" in its parts.
struct StateName {
  std::string parameter;
  std::string field;

  static std::optional<StateName> parse(const std::string& name) {
    if (!name.starts_with(kState)) return {};
    const std::size_t lead = std::string_view(kState).size();
    const auto dot = name.rfind('.');
    if (dot == std::string::npos || dot < lead) return {};
    return StateName{name.substr(lead, dot - lead), name.substr(dot + 1)};
  }
};

/// Ranks that together keep the state of optimizers of this pipeline's parameters.
/// @param unsharded  those that do if replicas keep all of it
d2d::Communicator state_holders(d2d::Communicator unsharded) {
  const bool sharded = Replicas::current().shards().active();
  return sharded ? Rank::current().groups().training_ranks() : std::move(unsharded);
}

/// A dict that all ranks have checked against an optimizer.
class OptimizerLoad {
 public:
  OptimizerLoad(DistributedModelBase& model, Optimizer& optimizer, StateDict dict)
      : model_(model),
        whole_(Rank::current(), model),
        exchange_(state_holders(model_holders(Rank::current())), offer_of(std::move(dict)),
                  "load_optimizer_state_dict") {
    check(optimizer);
  }

  /// Loads the options on every rank, at once, because schedulers read them.
  void load_options(Optimizer& optimizer) {
    std::map<std::string, at::Tensor> values;
    deliver([](const std::string& name) { return name.starts_with(kGroups); }, values);
    require_kind(optimizer, [&](auto kind) {
      for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
        auto& options =
            static_cast<typename decltype(kind)::Options&>(optimizer.param_groups()[g].options());
        each_option(options, [&](const char* name, auto& value) {
          const auto found = values.find(base::concat(kGroups, g, '.', name));
          if (found == values.end()) return;
          value = found->second.item<std::remove_reference_t<decltype(value)>>();
        });
      }
    });
  }

  /// Loads the state of the parameters that this rank steps.
  void load_state(Optimizer& optimizer) {
    const ParameterNames names(model_, optimizer);
    std::unordered_set<const void*> stepped;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) stepped.insert(parameter.unsafeGetTensorImpl());
    }
    std::map<std::string, at::Tensor> values;
    deliver(
        [&](const std::string& name) {
          const auto parts = StateName::parse(name);
          if (!parts) return false;
          const auto parameter = names.parameter(parts->parameter);
          return parameter.defined() && stepped.count(parameter.unsafeGetTensorImpl()) != 0;
        },
        values);
    std::unordered_map<const void*, std::map<std::string, at::Tensor>> fields;
    for (auto& [name, value] : values) {
      const auto parts = StateName::parse(name);
      fields[names.parameter(parts->parameter).unsafeGetTensorImpl()][parts->field] = value;
    }
    at::NoGradGuard no_grad;
    require_kind(optimizer, [&](auto kind) {
      for (const auto& group : optimizer.param_groups()) {
        for (const auto& parameter : group.params()) {
          put_state<typename decltype(kind)::State>(optimizer, parameter,
                                                    fields[parameter.unsafeGetTensorImpl()]);
        }
      }
    });
  }

 private:
  template <class State>
  void put_state(Optimizer& optimizer, const at::Tensor& parameter,
                 const std::map<std::string, at::Tensor>& fields) const {
    auto* const key = parameter.unsafeGetTensorImpl();
    if (fields.empty()) {  // Adagrad has one from its construction
      if (!std::is_same_v<State, torch::optim::AdagradParamState>) optimizer.state().erase(key);
      return;
    }
    auto state = std::make_unique<State>();
    each_state_field(*state, [&](const char* field, auto& value) {
      const auto found = fields.find(field);
      if (found == fields.end()) return;
      if constexpr (std::is_same_v<decltype(value), std::int64_t&>) {
        value = found->second.template item<std::int64_t>();
      } else {
        value = at::empty_like(parameter);
        value.copy_(whole_.own_part(parameter, found->second));
      }
    });
    optimizer.state()[key] = std::move(state);
  }

  template <class Wants>
  void deliver(Wants&& wants, std::map<std::string, at::Tensor>& values) {
    std::vector<bool> wanted;
    for (const auto& info : exchange_.tensors()) wanted.push_back(wants(info.name));
    exchange_.deliver(wanted, [&](std::size_t i, const at::Tensor& value) {
      values[exchange_.tensors()[i].name] = value;
    });
  }

  void check(Optimizer& optimizer) {
    const auto own = options_of(optimizer);
    std::set<std::string> state_fields;
    std::string kind_name;
    require_kind(optimizer, [&](auto kind) {
      typename decltype(kind)::State state;
      each_state_field(state, [&](const char* field, auto&) { state_fields.insert(field); });
      kind_name = std::string(kKind) + kind.name;
    });
    const ParameterNames names(model_, optimizer);
    std::string complaints;
    std::map<std::string, std::set<std::string>> fields_of;  // by parameter
    bool has_kind = false;
    std::size_t groups = 0;
    for (const auto& info : exchange_.tensors()) {
      const auto& name = info.name;
      has_kind |= name == kind_name;
      groups += name.starts_with(kGroups) && name.ends_with(".lr");
      if (name.starts_with(kGroups)) {
        if (!own.contains(name)) complaints += "\n  unexpected: " + name;
      } else if (const auto parts = StateName::parse(name)) {
        complaints += complaint(*parts, info, names.parameter(parts->parameter), state_fields);
        if (names.parameter(parts->parameter).defined()) {
          fields_of[parts->parameter].insert(parts->field);
        }
      } else if (name != kind_name) {
        complaints += "\n  unexpected: " + name;
      }
    }
    for (const auto& [parameter, fields] : fields_of) {
      for (const auto& field : state_fields) {
        if (!is_always_kept(field) || fields.count(field) > 0) continue;
        complaints += base::concat("\n  missing: ", kState, parameter, '.', field);
      }
    }
    SMP_REQUIRE(has_kind,
                "load_optimizer_state_dict: the dict is no state of this optimizer: it "
                "has no \"",
                kind_name, "\"");
    SMP_REQUIRE(groups == optimizer.param_groups().size(),
                "load_optimizer_state_dict: the dict has ", groups,
                " groups of parameters, the optimizer ", optimizer.param_groups().size());
    SMP_REQUIRE(complaints.empty(),
                "load_optimizer_state_dict: the dict does not fit the "
                "optimizer; nothing was loaded.",
                complaints);
  }

  std::string complaint(const StateName& name, const TensorInfo& info, const at::Tensor& parameter,
                        const std::set<std::string>& fields) const {
    if (!parameter.defined() || fields.count(name.field) == 0) {
      return "\n  unexpected: " + info.name;
    }
    const bool is_number = name.field == "step";
    const auto sizes = is_number ? std::vector<std::int64_t>() : whole_.sizes(parameter);
    if (info.sizes == sizes) return {};
    return base::concat("\n  shape of ", info.name, ": ", c10::IntArrayRef(info.sizes),
                        ", but it must have ", c10::IntArrayRef(sizes));
  }

  DistributedModelBase& model_;
  WholeTensors whole_;
  Exchange exchange_;
};

/// Returns an offer of the state that this rank keeps. The state of slices becomes that of the
/// whole when it is read, by all ranks that share the parameter: with sharded state only these have
/// it.
checkpoint::Offer whole_offer(const StateDict& local, const ParameterNames& names,
                              const std::shared_ptr<const WholeTensors>& whole) {
  checkpoint::Offer offer;
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  // parameter and state
  for (const auto& [name, tensor] : local) {
    const auto parts = StateName::parse(name);
    const auto parameter = parts ? names.parameter(parts->parameter) : at::Tensor();
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

StateDict optimizer_state_dict(const DistributedModelBase& model, Optimizer& optimizer,
                               int pp_rank) {
  constexpr const char* kWhat = "optimizer_state_dict";
  const PublicCall call("smp::optimizer_state_dict");
  auto& rank = between_steps(kWhat);
  const auto whole = std::make_shared<const WholeTensors>(rank, model);
  const auto local = local_state(model, optimizer);
  Exchange exchange(state_holders(rank.groups().of(Group::kPp)),
                    whole_offer(local, ParameterNames(model, optimizer), whole), kWhat);
  const bool is_target = pp_rank == kAllPpRanks || rank.pp_rank() == PpRank(pp_rank);
  StateDict dict;
  exchange.deliver(std::vector<bool>(exchange.tensors().size(), is_target),
                   [&](std::size_t i, const at::Tensor& value) {
                     const auto& name = exchange.tensors()[i].name;
                     dict.insert(name, local.contains(name) ? value.clone() : value);
                   });
  return dict;
}

void load_optimizer_state_dict(DistributedModelBase& model,
                               const std::shared_ptr<Optimizer>& optimizer, const StateDict& dict) {
  const PublicCall call("smp::load_optimizer_state_dict");
  between_steps("load_optimizer_state_dict");
  const auto load = std::make_shared<OptimizerLoad>(model, *optimizer, dict);
  load->load_options(*optimizer);
  std::weak_ptr<Optimizer> weak = optimizer;
  model.on_placed([load, weak] {
    if (const auto alive = weak.lock()) load->load_state(*alive);
  });
}

}  // namespace smp::detail
