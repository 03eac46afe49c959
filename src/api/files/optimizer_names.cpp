// api/files/optimizer_names.cpp: see the header.
#include "api/files/optimizer_names.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "api/state/session_state.h"
#include "base/check.h"
#include "checkpoint/module_tensors.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

constexpr std::string_view kStateLead = "state.";
constexpr std::string_view kGroupsLead = "param_groups.";
constexpr std::string_view kKindLead = "optimizer.";
constexpr std::string_view kMembersLead = "params.";

/// A number of digits without anything before or behind, and what follows it.
struct Numbered {
  std::size_t number;
  std::string_view rest;
};

/// Of "0.lr" 0 and "lr", of "12" 12 and nothing.
std::optional<Numbered> leading_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || (digits > 1 && text[0] == '0')) return {};
  if (digits == text.size()) return Numbered{number, {}};
  if (text[digits] != '.') return {};
  return Numbered{number, text.substr(digits + 1)};
}

/// Of "param_groups.1.2" 1 and 2.
std::optional<std::pair<std::size_t, std::size_t>> place_of_nameless(std::string_view name) {
  if (!name.starts_with(kGroupsLead)) return {};
  const auto group = leading_number(name.substr(kGroupsLead.size()));
  if (!group || group->rest.empty()) return {};
  const auto place = leading_number(group->rest);
  if (!place || group->rest.find('.') != std::string_view::npos) return {};
  return std::pair(group->number, place->number);
}

void refuse_parameters_of_others(const DistributedModelBase& model,
                                 const std::unordered_set<const void*>& strangers) {
  for (const auto* other : SessionState::current().models()) {
    if (other == &model) continue;
    for (const auto& [tensor, names] : checkpoints::tensors_of(other->base_module())) {
      SMP_REQUIRE_AS(UnsupportedError, strangers.count(tensor.unsafeGetTensorImpl()) == 0,
                     "the state of an optimizer over several models has no unique names (",
                     names[0], " is another model's); use an optimizer for each model");
    }
  }
}

}  // namespace

OptimizerEntry OptimizerEntry::parse(const std::string& name) {
  const std::string_view text = name;
  if (text.starts_with(kKindLead)) return {Kind::kOptimizer, 0, {}, name.substr(kKindLead.size())};
  if (text.starts_with(kGroupsLead)) {
    const auto group = leading_number(text.substr(kGroupsLead.size()));
    if (!group || group->rest.empty()) return {};
    if (group->rest.starts_with(kMembersLead)) {
      return {
          Kind::kMember, group->number, std::string(group->rest.substr(kMembersLead.size())), {}};
    }
    return {Kind::kOption, group->number, {}, std::string(group->rest)};
  }
  const auto dot = text.rfind('.');
  if (!text.starts_with(kStateLead) || dot < kStateLead.size()) return {};
  return {Kind::kState, 0, name.substr(kStateLead.size(), dot - kStateLead.size()),
          name.substr(dot + 1)};
}

std::string OptimizerEntry::name() const {
  switch (kind) {
    case Kind::kOptimizer:
      return base::concat(kKindLead, field);
    case Kind::kOption:
      return base::concat(kGroupsLead, group, '.', field);
    case Kind::kMember:
      return base::concat(kGroupsLead, group, '.', kMembersLead, parameter);
    case Kind::kState:
      return base::concat(kStateLead, parameter, '.', field);
    case Kind::kOther:
      break;
  }
  return {};
}

ParameterNames::ParameterNames(const DistributedModelBase& model,
                               torch::optim::Optimizer& optimizer) {
  for (const auto& [tensor, names] : checkpoints::tensors_of(model.base_module())) {
    first_.emplace(tensor.unsafeGetTensorImpl(), names[0]);
    for (const auto& name : names) tensors_.emplace(name, tensor);
  }
  std::unordered_set<const void*> strangers;
  for (const auto& group : optimizer.param_groups()) {
    auto& names = groups_.emplace_back();
    std::size_t others = 0;
    for (const auto& parameter : group.params()) {
      const auto [known, fresh] =
          first_.try_emplace(parameter.unsafeGetTensorImpl(), nameless(groups_.size() - 1, others));
      names.push_back(known->second);
      if (!fresh) continue;
      ++others;
      strangers.insert(known->first);
      tensors_.emplace(known->second, parameter);
    }
  }
  refuse_parameters_of_others(model, strangers);
}

const std::string* ParameterNames::find(const at::Tensor& parameter) const {
  const auto found = first_.find(parameter.unsafeGetTensorImpl());
  return found == first_.end() ? nullptr : &found->second;
}

at::Tensor ParameterNames::parameter(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? at::Tensor() : found->second;
}

std::string ParameterNames::nameless(std::size_t group, std::size_t number) {
  return base::concat(kGroupsLead, group, '.', number);
}

bool ParameterNames::is_nameless(const std::string& name) {
  return place_of_nameless(name).has_value();
}

std::string ParameterNames::moved(const std::string& name,
                                  const std::vector<std::size_t>& new_numbers) {
  const auto place = place_of_nameless(name);
  if (!place || place->first >= new_numbers.size()) return name;
  return nameless(new_numbers[place->first], place->second);
}

}  // namespace smp
