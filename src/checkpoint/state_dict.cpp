// checkpoint/state_dict.cpp: the container, and other names for what it holds.
#include "smp/state_dict.h"

#include <functional>

#include "base/check.h"
#include "checkpoint/names.h"

namespace smp {

StateDict::StateDict(std::initializer_list<Item> items) {
  for (const auto& [name, tensor] : items) insert(name, tensor);
}

void StateDict::insert(std::string name, at::Tensor tensor) {
  SMP_REQUIRE(tensor.defined(), "StateDict: \"", name, "\" is undefined; leave it out");
  SMP_REQUIRE(places_.emplace(name, items_.size()).second, "StateDict: \"", name,
              "\" is there already; erase() it first");
  items_.emplace_back(std::move(name), std::move(tensor));
}

bool StateDict::erase(const std::string& name) {
  const auto found = places_.find(name);
  if (found == places_.end()) return false;
  const auto place = found->second;
  places_.erase(found);
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(place));
  for (auto& [other, index] : places_) index -= index > place;
  return true;
}

const at::Tensor& StateDict::at(const std::string& name) const {
  const auto found = places_.find(name);
  SMP_REQUIRE(found != places_.end(), "StateDict: no tensor \"", name, "\" among its ", size(),
              " tensors");
  return items_[found->second].second;
}

std::vector<std::string> StateDict::names() const {
  std::vector<std::string> names;
  names.reserve(items_.size());
  for (const auto& item : items_) names.push_back(item.first);
  return names;
}

namespace {

StateDict renamed(const StateDict& dict,
                  const std::function<std::string(const std::string&)>& change) {
  StateDict changed;
  changed.metadata = dict.metadata;
  for (const auto& [name, tensor] : dict) {
    auto now = change(name);
    SMP_REQUIRE(!changed.contains(now), "two tensors would be called \"", now, "\", one of them \"",
                name, "\" now");
    changed.insert(std::move(now), tensor);
  }
  return changed;
}

}  // namespace

StateDict without_prefix(const StateDict& dict, const std::string& prefix) {
  return renamed(
      dict, [&](const std::string& name) { return checkpoints::without_prefix(name, prefix); });
}

StateDict with_prefix(const StateDict& dict, const std::string& prefix) {
  return renamed(dict, [&](const std::string& name) { return prefix + name; });
}

StateDict without_part(const StateDict& dict, const std::string& part) {
  return renamed(dict,
                 [&](const std::string& name) { return checkpoints::without_part(name, part); });
}

}  // namespace smp
