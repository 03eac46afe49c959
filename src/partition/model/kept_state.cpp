// partition/model/kept_state.cpp: the program's word goes before what was seen.
#include "partition/model/kept_state.h"

#include <map>
#include <utility>

namespace smp::partitioning {

using simulate::StateKind;

std::vector<simulate::StateChange> all_state(const ModuleTree& tree,
                                             const std::vector<simulate::StateChange>& seen) {
  std::map<int, simulate::StateChange> found;
  for (const auto& change : seen) {
    if (tree.nodes.at(change.module).state_use == StateUse::kWatched) found[change.module] = change;
  }
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const int module = static_cast<int>(i);
    const StateUse use = tree.nodes[i].state_use;
    if (use == StateUse::kShared)
      found[module] = {module, StateKind::kShared, "writes what smp::shared_state_v says"};
    if (use == StateUse::kOrdered) {
      found[module] = {module, StateKind::kOrdered, "writes what smp::ordered_state_v says"};
    }
  }
  std::vector<simulate::StateChange> all;
  for (auto& [module, change] : found) all.push_back(std::move(change));
  return all;
}

void add_state(std::vector<simulate::StateChange>& state,
               const std::vector<simulate::StateChange>& more) {
  std::map<int, simulate::StateChange> found;
  for (auto& change : state) found[change.module] = std::move(change);
  for (const auto& change : more) {
    const auto [known, fresh] = found.try_emplace(change.module, change);
    if (!fresh && change.kind > known->second.kind) known->second = change;
  }
  state.clear();
  for (auto& [module, change] : found) state.push_back(std::move(change));
}

}  // namespace smp::partitioning
