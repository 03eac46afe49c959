// api/files/optimizer_load.cpp: names and types first, then options, groups, state; values last.
#include "api/files/optimizer_load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <type_traits>

#include "api/files/model_exchange.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "api/state/optimizer_fields.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/log.h"
#include "base/machine/home_device.h"
#include "d2d/tensors/tensor_data.h"
#include "deferred/delayed_tensors.h"
#include "server/modules/foreign_parameters.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

using checkpoints::TensorInfo;
using torch::optim::Optimizer;
using Entry = OptimizerEntry;

constexpr const char* kLoad = "load_optimizer_state_dict";
constexpr const char* kStepField =
    "step";  // a whole number; all others are tensors like the parameter

bool is_one(const TensorInfo& info) {
  return std::all_of(info.sizes.begin(), info.sizes.end(), [](auto size) { return size == 1; });
}
bool is_real(c10::ScalarType type) {
  return c10::isFloatingType(type) || c10::isIntegralType(type, /*includeBool=*/false);
}
bool is_number(const TensorInfo& info) { return is_one(info) && is_real(info.dtype); }
bool is_truth(const TensorInfo& info) { return is_one(info) && info.dtype == at::kBool; }

std::string text_of_type(const TensorInfo& info) {
  return base::concat(info.dtype, ' ', c10::IntArrayRef(info.sizes));
}

/// Returns what is wrong with the values of a dict that this rank gives, apart from names, shapes
/// and types; empty: nothing.
std::string problem_with_values(const StateDict& dict) {
  for (const auto& [name, tensor] : dict) {
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
      return base::concat(name, " is no dense tensor; convert it with to_dense()");
    }
    if (tensor.is_meta() || server::is_foreign(tensor)) {
      return base::concat(name, " is a tensor that has no values on this rank");
    }
    const auto entry = Entry::parse(name);
    const auto info = TensorInfo::of(name, tensor);
    if (entry.kind == Entry::Kind::kMember && is_truth(info) && !tensor.item<bool>()) {
      return base::concat(name, " is false; leave out the parameters that a group does not have");
    }
    if (entry.kind != Entry::Kind::kState || entry.field != kStepField || !is_number(info))
      continue;
    const double steps = tensor.item<double>();
    if (steps < 0 || steps != std::floor(steps)) {
      return base::concat(name, " is ", steps, ", but steps are counted");
    }
  }
  return {};
}

/// Returns an offer of `dict`. It has values of its own if they are `kept` for later.
checkpoints::Offer checked_offer(const StateDict& dict, bool kept) {
  auto problem = problem_with_values(dict);
  if (!problem.empty()) {
    checkpoints::Offer refused;
    refused.problem = std::move(problem);
    return refused;
  }
  if (!kept) return offer_of(dict);
  StateDict copies;
  for (const auto& [name, tensor] : dict) copies.insert(name, d2d::independent_copy(tensor));
  return offer_of(std::move(copies));
}

/// Calls `action(kind)`. @throws UnsupportedError  the optimizer is of no known kind
template <class Action>
void require_known(Optimizer& optimizer, Action&& action) {
  SMP_REQUIRE_AS(UnsupportedError, with_kind(optimizer, action),
                 "the state of this optimizer cannot be saved by name: it is none of SGD, Adam, "
                 "AdamW, Adagrad and RMSprop");
}

/// Returns the options that optimizers of this kind have, by name: true for a truth value.
template <class Kind>
std::map<std::string, bool> names_of_options() {
  std::map<std::string, bool> names;
  typename Kind::Options options(0.1);
  each_option(options, [&](const char* name, auto& value) {
    names.emplace(name, std::is_same_v<decltype(value), bool&>);
  });
  return names;
}

void set_numbers(auto& options, const std::map<std::string, double>& numbers) {
  each_option(options, [&](const char* name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(numbers.at(name));
  });
}

template <class Kind>
typename Kind::Options options_of_numbers(const std::map<std::string, double>& numbers) {
  typename Kind::Options options(0.1);
  set_numbers(options, numbers);
  return options;
}

/// Returns a tensor for state of `parameter`, which may have no values yet; elements are not set.
/// State of float32 stays so beside a parameter of 16 bits.
at::Tensor state_like(const at::Tensor& parameter, at::ScalarType saved) {
  const bool wider = at::isReducedFloatingType(parameter.scalar_type()) && saved == at::kFloat;
  const auto options = parameter.options().dtype(wider ? saved : parameter.scalar_type());
  if (!deferred::is_delayed(parameter)) return at::empty_like(parameter, options);
  return at::empty(parameter.sizes(), options.device(base::home_device()));
}

}  // namespace

ParameterNames names_on_all(const d2d::Communicator& ranks, const DistributedModelBase& model,
                            Optimizer& optimizer, const char* what) {
  std::optional<ParameterNames> names;
  std::exception_ptr problem;
  try {
    require_known(optimizer, [](const auto&) {});
    names.emplace(model, optimizer);
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  checkpoints::agree(ranks, problem, what);
  return *std::move(names);
}

OptimizerLoad::OptimizerLoad(const DistributedModelBase& model, Optimizer& optimizer,
                             const d2d::Communicator& ranks, const StateDict& dict)
    : names_(names_on_all(ranks, model, optimizer, kLoad)),
      whole_(Rank::current(), model),
      exchange_(ranks, checked_offer(dict, /*kept=*/!model.partitioned()), kLoad) {
  for (const auto& info : exchange_.tensors()) entries_.push_back(Entry::parse(info.name));
  read_numbers();
  const auto groups = gather_values(ranks, names_.groups(), kLoad);
  std::exception_ptr problem;
  try {
    check(optimizer, groups);
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  exchange_.agree(problem);
  warn_of_masters();
}

/// True if this run keeps a master of `parameter`.
static bool has_master(const at::Tensor& parameter) {
  return Rank::current().config().master_weights &&
         at::isReducedFloatingType(parameter.scalar_type());
}

/// All ranks have the same entries; one says so.
void OptimizerLoad::warn_of_masters() const {
  if (Rank::current().topology().rank() != 0) return;
  const auto unused = std::count_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.field == kMasterField && !has_master(names_.parameter(entry.parameter));
  });
  if (unused == 0) return;
  base::log_text(base::LogLevel::kWarning,
                 base::concat(kLoad, ": float32 values of ", unused,
                              " parameters are not used, and what these had beyond their own type "
                              "is lost: master_weights is off, or they have not 16 bits"));
}

/// Gives all ranks the options, and the number of groups.
void OptimizerLoad::read_numbers() {
  std::vector<bool> wanted;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& info = exchange_.tensors()[i];
    const bool counts =
        entries_[i].kind == Entry::Kind::kOption || entries_[i].kind == Entry::Kind::kOptimizer;
    wanted.push_back(counts && (is_number(info) || is_truth(info)));
  }
  exchange_.deliver(wanted, [&](std::size_t i, const at::Tensor& value) {
    numbers_.emplace(exchange_.tensors()[i].name, value.detach().clone());
  });
}

/// @param groups_of_all  by rank: the names of what each group has there
void OptimizerLoad::check(Optimizer& optimizer,
                          const std::vector<std::vector<std::vector<std::string>>>& groups_of_all) {
  std::vector<checkpoints::ParameterGroup> own(optimizer.param_groups().size());
  for (const auto& groups : groups_of_all) {
    SMP_REQUIRE(groups.size() == own.size(), kLoad, ": the optimizers of two ranks have ",
                groups.size(), " and ", own.size(), " groups; make them alike on every rank");
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const auto& name : groups[g]) {
        if (!group_of_.emplace(name, g).second) continue;
        if (ParameterNames::is_nameless(name)) {
          ++own[g].nameless;
        } else {
          own[g].names.insert(name);
        }
      }
    }
  }
  require_known(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    for (std::size_t g = 0; g < own.size(); ++g) {
      auto& options = static_cast<typename Kind::Options&>(optimizer.param_groups()[g].options());
      each_option(options, [&](const char* name, auto& value) {
        own[g].options[name] = static_cast<double>(value);
      });
    }
    auto complaints = check_entries(kind);
    find_saved_groups(kind, complaints);
    if (complaints.empty()) {
      try {
        source_ = checkpoints::match_groups(saved_, own);
      } catch (const UsageError& error) {
        SMP_REQUIRE(false, kLoad, ": nothing was loaded, because ", error.what());
      }
    } else {  // to find what else is wrong
      for (std::size_t g = 0; g < own.size(); ++g) source_.push_back(g);
    }
    complaints += check_states(kind);
    SMP_REQUIRE(complaints.empty(), kLoad,
                ": the dict does not fit the optimizer; nothing was loaded.", complaints);
  });
}

/// Returns what is wrong with entries by themselves, but for state.
template <class Kind>
std::string OptimizerLoad::check_entries(const Kind& kind) {
  const auto options = names_of_options<Kind>();
  const auto kind_name = Entry{Entry::Kind::kOptimizer, 0, {}, kind.name}.name();
  std::string complaints;
  bool has_kind = false;
  const auto complain_of_type = [&](const TensorInfo& info, const char* due) {
    complaints +=
        base::concat("\n  ", info.name, ": ", text_of_type(info), ", but it must be ", due);
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    const auto& info = exchange_.tensors()[i];
    if (entry.kind == Entry::Kind::kState) continue;
    if (entry.kind == Entry::Kind::kMember) {
      if (!is_truth(info)) complain_of_type(info, "one truth value");
      continue;
    }
    const auto option = options.find(entry.field);
    if (info.name == kind_name) {
      has_kind = true;
      if (!is_number(info)) complain_of_type(info, "the number of groups");
    } else if (entry.kind != Entry::Kind::kOption || option == options.end()) {
      complaints += "\n  unexpected: " + info.name;
    } else if (option->second && !is_truth(info)) {
      complain_of_type(info, "one truth value");
    } else if (!option->second && !is_number(info)) {
      complain_of_type(info, "one number");
    }
  }
  SMP_REQUIRE(has_kind, kLoad, ": the dict is no state of this optimizer: it has no \"", kind_name,
              "\"; nothing was loaded");
  return complaints;
}

/// Finds the groups of the dict with all that it says of them; adds what is missing and what
/// LibTorch would refuse.
template <class Kind>
void OptimizerLoad::find_saved_groups(const Kind& kind, std::string& complaints) {
  for (const auto& entry : entries_) {
    const bool of_group = entry.kind == Entry::Kind::kOption || entry.kind == Entry::Kind::kMember;
    if (!of_group) continue;
    // More than there are entries cannot be complete.
    if (entry.group >= saved_.size()) saved_.resize(std::min(entry.group, entries_.size()) + 1);
    auto& group = saved_[std::min(entry.group, entries_.size())];
    if (entry.kind == Entry::Kind::kOption) {
      const auto number = numbers_.find(entry.name());
      if (number != numbers_.end()) {
        group.options[entry.field] = number->second.template item<double>();
      }
    } else if (ParameterNames::is_nameless(entry.parameter)) {
      ++group.nameless;
    } else {
      const auto parameter = names_.parameter(entry.parameter);
      group.names.insert(parameter.defined() ? names_.of(parameter) : entry.parameter);
    }
  }
  const auto count = numbers_.find(Entry{Entry::Kind::kOptimizer, 0, {}, kind.name}.name());
  if (count != numbers_.end() &&
      count->second.template item<double>() != static_cast<double>(saved_.size())) {
    complaints += base::concat("\n  ", count->first, ": ", count->second.template item<double>(),
                               " groups, but the dict has ", saved_.size());
  }
  for (std::size_t g = 0; g < saved_.size(); ++g) {
    bool complete = true;
    for (const auto& [name, truth] : names_of_options<Kind>()) {
      if (saved_[g].options.count(name) > 0) continue;
      complete = false;
      const auto full_name = Entry{Entry::Kind::kOption, g, {}, name}.name();
      const bool unfit =
          std::any_of(exchange_.tensors().begin(), exchange_.tensors().end(),
                      [&](const TensorInfo& info) { return info.name == full_name; });
      if (!unfit) complaints += "\n  missing: " + full_name;
    }
    if (!complete || !complaints.empty()) continue;
    const auto problem = problem_with_options<Kind>(options_of_numbers<Kind>(saved_[g].options));
    if (!problem.empty()) {
      complaints += base::concat("\n  options of group ", g, ": ", problem);
    }
  }
}

/// Returns what is wrong with the state of parameters; gives its entries the parameters' first
/// names.
template <class Kind>
std::string OptimizerLoad::check_states(const Kind&) {
  std::vector<std::size_t> new_numbers(saved_.size());
  for (std::size_t g = 0; g < source_.size(); ++g) {
    if (source_[g] < new_numbers.size()) new_numbers[source_[g]] = g;
  }
  std::vector<std::string> fields = {kMasterField};
  typename Kind::State example;
  each_state_field(example, [&](const char* field, auto&) { fields.emplace_back(field); });
  std::string complaints;
  Fields found;  // by first name and field: the name in the dict
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    auto& entry = entries_[i];
    if (entry.kind != Entry::Kind::kState) continue;
    const auto& name = exchange_.tensors()[i].name;
    const auto parameter = names_.parameter(ParameterNames::moved(entry.parameter, new_numbers));
    const bool known = parameter.defined() && group_of_.count(names_.of(parameter)) > 0 &&
                       std::find(fields.begin(), fields.end(), entry.field) != fields.end();
    if (!known) {
      complaints += "\n  unexpected: " + name;
      continue;
    }
    entry.parameter = names_.of(parameter);
    complaints += problem_of_state(i, parameter);
    const auto [other, fresh] = found[entry.parameter].emplace(entry.field, name);
    if (!fresh) {
      complaints += base::concat("\n  ", other->second, " and ", name,
                                 " are of one parameter; leave one of them out");
    }
  }
  for (const auto& [parameter, given] : found) {
    const auto group = source_[group_of_.at(parameter)];
    if (group >= saved_.size() || saved_[group].options.size() != names_of_options<Kind>().size()) {
      continue;
    }
    const auto options = options_of_numbers<Kind>(saved_[group].options);
    for (const auto& field : fields) {
      if (field == kMasterField || !needs_field(options, field) || given.count(field) > 0) continue;
      complaints += "\n  missing: " + Entry{Entry::Kind::kState, 0, parameter, field}.name();
    }
  }
  return complaints;
}

std::string OptimizerLoad::problem_of_state(std::size_t number, const at::Tensor& parameter) const {
  const auto& info = exchange_.tensors()[number];
  const bool counts = entries_[number].field == kStepField;
  const auto sizes = counts ? std::vector<std::int64_t>() : whole_.sizes(parameter);
  if (info.sizes != sizes) {
    return base::concat("\n  shape of ", info.name, ": ", c10::IntArrayRef(info.sizes),
                        ", but it must have ", c10::IntArrayRef(sizes));
  }
  const bool fits = counts ? is_real(info.dtype)
                           : c10::isFloatingType(info.dtype) ||
                                 (parameter.is_complex() && c10::isComplexType(info.dtype));
  if (fits) return {};
  return base::concat("\n  type of ", info.name, ": ", info.dtype, ", but it must be ",
                      counts ? "a number of steps"
                             : base::concat("that of the parameter, ", parameter.scalar_type()));
}

void OptimizerLoad::set_options(Optimizer& optimizer) const {
  require_known(optimizer, [&](auto kind) {
    for (std::size_t g = 0; g < source_.size(); ++g) {
      auto& options = optimizer.param_groups().at(g).options();
      set_numbers(static_cast<typename decltype(kind)::Options&>(options),
                  saved_[source_[g]].options);
    }
  });
}

OptimizerLoad::NewState OptimizerLoad::fetch(Optimizer& optimizer) {
  std::unordered_map<std::string, at::Tensor> here;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (server::is_foreign(parameter)) continue;
      const auto* name = names_.find(parameter);
      if (name != nullptr && group_of_.count(*name) > 0) here.emplace(*name, parameter);
    }
  }
  std::vector<bool> wanted;
  for (const auto& entry : entries_) {
    const auto found = here.find(entry.parameter);
    wanted.push_back(entry.kind == Entry::Kind::kState && found != here.end() &&
                     (entry.field != kMasterField || has_master(found->second)));
  }
  const at::NoGradGuard no_grad;
  NewState all;
  require_known(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    std::unordered_map<std::string, std::unique_ptr<typename Kind::State>> made;
    exchange_.deliver(wanted, [&](std::size_t i, const at::Tensor& value) {
      const auto& parameter = here.at(entries_[i].parameter);
      if (entries_[i].field == kMasterField) {
        all.masters.emplace_back(
            parameter, state_like(parameter, at::kFloat).copy_(whole_.own_part(parameter, value)));
        return;
      }
      auto& state = made[entries_[i].parameter];
      if (!state) state = std::make_unique<typename Kind::State>();
      each_state_field(*state, [&](const char* field, auto& slot) {
        if (entries_[i].field != field) return;
        if constexpr (std::is_same_v<decltype(slot), std::int64_t&>) {
          slot = value.template item<std::int64_t>();
        } else {
          slot = state_like(parameter, value.scalar_type());
          slot.copy_(whole_.own_part(parameter, value));
        }
      });
    });
    for (const auto& [name, parameter] : here) {
      auto& state = made[name];
      if constexpr (std::is_same_v<typename Kind::State, torch::optim::AdagradParamState>) {
        if (!state) {  // it has one from its construction
          const auto& options = saved_[source_[group_of_.at(name)]].options;
          state = std::make_unique<typename Kind::State>();
          state->sum(state_like(parameter, parameter.scalar_type())
                         .fill_(options.at("initial_accumulator_value")));
        }
      }
      all.states.emplace_back(parameter, std::move(state));
    }
  });
  return all;
}

void OptimizerLoad::put(Optimizer& optimizer, NewState state) {
  auto& masters = SessionState::current().masters();
  for (auto& [parameter, own] : state.states) {
    masters.forget(parameter);
    if (own) {
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(own);
    } else {
      optimizer.state().erase(parameter.unsafeGetTensorImpl());
    }
  }
  for (auto& [parameter, values] : state.masters) masters.set(parameter, std::move(values));
}

}  // namespace smp
