// partition/model/hand_placement.cpp: finds the modules that pins mean, then passes stages down.
#include "partition/model/hand_placement.h"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/text/edit_distance.h"
#include "partition/model/placement_rules.h"

namespace smp::partitioning {
namespace {

using base::concat;

// Modules whose path ends in `.name`.
std::vector<std::string> paths_that_end_in(const ModuleTree& tree, const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& path : tree.all_paths()) {
    if (path.ends_with("." + name)) found.push_back(path);
  }
  return found;
}

std::string unknown_path(const ModuleTree& tree, const std::string& path) {
  const auto candidates = paths_that_end_in(tree, path);
  if (candidates.empty()) {
    return concat("the model has no such module", base::did_you_mean(path, tree.all_paths()));
  }
  if (candidates.size() == 1) {
    return concat("paths start at the model; did you mean \"", candidates.front(), "\"?");
  }
  return concat("that could be any of ", candidates.size(), " modules, \"", candidates.front(),
                "\" or \"", candidates[1], "\" among them; write the whole path");
}

class Pins {
 public:
  Pins(const ModuleTree& tree, int pp_size)
      : tree_(tree),
        pp_size_(pp_size),
        hand_{std::vector<int>(tree.nodes.size(), -1), std::vector<std::string>(tree.nodes.size())},
        pin_(tree.nodes.size(), nullptr) {
    // A plan file pins every module.
    for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
      node_of_.try_emplace(tree.nodes[i].path, static_cast<int>(i));
      for (const auto& alias : tree.nodes[i].aliases) {
        node_of_.try_emplace(alias, static_cast<int>(i));
      }
    }
  }

  void follow(const Pin& pin) {
    const std::string fault = fault_of(pin);
    if (!fault.empty()) {
      faults_.push_back(concat(lead(pin), ": ", fault));
      return;
    }
    const int node = node_of_.at(pin.path);
    pin_[node] = &pin;
    hand_.stages[node] = pin.pp_rank;
    hand_.reasons[node] = concat("placed by ", pin.origin);
  }

  HandPlacement finish() && {
    require_no_faults();
    pass_down();
    faults_ = placement_faults(tree_, hand_.stages, pp_size_, hand_.reasons);
    require_no_faults();
    return std::move(hand_);
  }

 private:
  static std::string lead(const Pin& pin) {
    return concat("stage ", pin.pp_rank, " for \"", pin.path, "\" (", pin.origin, ")");
  }

  // Empty if the pin, on its own, can be followed.
  std::string fault_of(const Pin& pin) const {
    const auto found = node_of_.find(pin.path);
    if (found == node_of_.end()) return unknown_path(tree_, pin.path);
    const int node = found->second;
    if (pin.pp_rank < 0 || pin.pp_rank >= pp_size_) {
      return concat("there are ", pp_size_, " stages, numbered from 0");
    }
    const Pin* earlier = pin_[node];
    if (earlier != nullptr && earlier->path != pin.path && earlier->pp_rank != pin.pp_rank) {
      return concat("this is the same module as \"", earlier->path, "\", which ", earlier->origin,
                    " puts on stage ", earlier->pp_rank);
    }
    return {};
  }

  void require_no_faults() const {
    if (!faults_.empty()) throw UsageError(list_of_faults("placement by hand", faults_));
  }

  void pass_down() {
    for (std::size_t i = 1; i < tree_.nodes.size(); ++i) {
      const int parent = tree_.nodes[i].parent;
      if (hand_.stages[i] >= 0 || hand_.stages[parent] < 0) continue;
      hand_.stages[i] = hand_.stages[parent];
      hand_.reasons[i] = hand_.reasons[parent];
    }
  }

  const ModuleTree& tree_;
  std::unordered_map<std::string, int> node_of_;  // by path and alias
  const int pp_size_;
  HandPlacement hand_;
  std::vector<const Pin*> pin_;  // of every module: the one that is followed
  std::vector<std::string> faults_;
};

}  // namespace

HandPlacement follow_pins(const ModuleTree& tree, const std::vector<Pin>& pins, int pp_size) {
  Pins placement(tree, pp_size);
  for (const Pin& pin : pins) placement.follow(pin);
  return std::move(placement).finish();
}

}  // namespace smp::partitioning
