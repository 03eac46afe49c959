// partition/model/node_groups.cpp: disjoint sets of modules, each with the stage it is fixed to.
#include "partition/model/node_groups.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.h"
#include "partition/model/placement_rules.h"

namespace smp::partitioning {
namespace {

using base::concat;

// Disjoint sets; the smallest index leads. A set that is fixed remembers who fixed it.
class JoinedModules {
 public:
  JoinedModules(const ModuleTree& tree, const std::vector<int>& fixed)
      : tree_(tree), fixed_(fixed), leader_(fixed.size()), witness_(fixed.size(), -1) {
    std::iota(leader_.begin(), leader_.end(), 0);
    for (std::size_t m = 0; m < fixed.size(); ++m) {
      if (fixed[m] >= 0) witness_[m] = static_cast<int>(m);
    }
    witness_[0] = 0;
    if (fixed_[0] > 0) {
      faults_.push_back(concat("the model itself runs on stage 0, so it cannot be placed on stage ",
                               fixed_[0], "; place its parts instead"));
    }
  }

  int leader(int module) {
    while (leader_[module] != module) {
      module = leader_[module] = leader_[leader_[module]];
    }
    return module;
  }

  int stage(int module) {
    const int witness = witness_[leader(module)];
    return witness < 0 ? -1 : fixed_stage(witness);
  }

  /// @param why  makes the text that explains why both must be on one stage
  template <class Why>
  void join(int a, int b, const Why& why) {
    const auto [first, second] = std::minmax({leader(a), leader(b)});
    if (first == second) return;
    leader_[second] = first;
    if (witness_[second] < 0) return;
    if (witness_[first] < 0) {
      witness_[first] = witness_[second];
    } else if (fixed_stage(witness_[first]) != fixed_stage(witness_[second])) {
      faults_.push_back(concat(described(witness_[first]), " and ", described(witness_[second]),
                               " must be on one stage: ", why()));
    }
  }

  const std::vector<std::string>& faults() const { return faults_; }

 private:
  int fixed_stage(int module) const { return module == 0 ? 0 : fixed_[module]; }

  std::string described(int module) const {
    return concat(quoted_path(tree_.nodes[module].path), " (placed on stage ", fixed_stage(module),
                  ")");
  }

  const ModuleTree& tree_;
  const std::vector<int>& fixed_;
  std::vector<int> leader_;
  std::vector<int> witness_;  // of leaders: a fixed module of the set; -1: the set is free
  std::vector<std::string> faults_;
};

class Grouping {
 public:
  Grouping(const ModuleTree& tree, const std::vector<simulate::WeightUse>& uses,
           const std::vector<simulate::BufferUse>& buffer_uses, const std::vector<int>& fixed,
           const std::vector<simulate::StateChange>& state)
      : tree_(tree),
        buffer_uses_(buffer_uses),
        state_(state),
        users_(holders_of_parameters(tree)),
        joined_(tree, fixed) {
    for (const simulate::WeightUse& use : uses) users_.at(use.parameter).push_back(use.module);
    weighty_.assign(tree.nodes.size(), false);
    for (const auto& users : users_) {
      for (const int user : users) weighty_[user] = true;
    }
    for (std::size_t m = tree.nodes.size(); m-- > 1;) {
      if (weighty_[m]) weighty_[tree.nodes[m].parent] = true;
    }
  }

  NodeGroups run() {
    join_users_of_weights();
    join_users_of_buffers();
    join_bound_modules();
    join_keepers_of_state();
    if (weighty_[0]) join_weightless_modules();
    if (!joined_.faults().empty()) {
      throw UsageError(list_of_faults("placement by hand", joined_.faults()));
    }
    NodeGroups groups;
    for (int m = 0; m < size(); ++m) {
      groups.first.push_back(joined_.leader(m));
      groups.fixed.push_back(joined_.stage(m));
    }
    return groups;
  }

 private:
  int size() const { return static_cast<int>(tree_.nodes.size()); }

  void join_users_of_weights() {
    for (std::size_t p = 0; p < users_.size(); ++p) {
      for (const int user : users_[p]) {
        joined_.join(users_[p].front(), user, [&] {
          return concat("the weight ", tree_.parameters[p].name, " of ",
                        quoted_path(tree_.nodes[users_[p].front()].path),
                        " is also held or read by ", quoted_path(tree_.nodes[user].path),
                        "; place both there");
        });
      }
    }
  }

  void join_users_of_buffers() {
    for (const auto& use : buffer_uses_) {
      joined_.join(use.holder, use.module, [&] {
        return concat("the buffer ", use.name, " of ", quoted_path(tree_.nodes[use.holder].path),
                      ", which is written in a step or larger than ", kSmallBuffer >> 10,
                      " KiB, is also held or used by ", quoted_path(tree_.nodes[use.module].path),
                      "; place both there");
      });
    }
  }

  void join_bound_modules() {
    for (int m = 1; m < size(); ++m) {
      const ModuleNode& module = tree_.nodes[m];
      if (module.movable()) continue;
      joined_.join(module.parent, m, [&] {
        return concat(quoted_path(module.path), " cannot leave its parent: ", module.stays_because,
                      "; place its parent instead");
      });
    }
  }

  void join_keepers_of_state() {
    for (const auto& change : state_) {
      if (change.kind != simulate::StateKind::kShared) continue;
      for (int m = change.module; m > 0; m = tree_.nodes[m].parent) {
        joined_.join(tree_.nodes[m].parent, m, [&] {
          return concat("the forward of ", quoted_path(tree_.nodes[change.module].path), " ",
                        change.what,
                        ". Who writes state that others may read, who reads it and the modules "
                        "above stay with the step's body on stage 0; leave them there, or say "
                        "that no other code reads it: specialise smp::ordered_state_v or "
                        "smp::private_state_v for the class that writes it (smp/state.h)");
        });
      }
    }
  }

  // Whoever placed such a module meant it: it keeps its stage, and drags nobody there.
  void join_weightless_modules() {
    for (int m = 1; m < size(); ++m) {
      if (weighty_[m] || !tree_.nodes[m].movable() || joined_.stage(m) >= 0) continue;
      joined_.join(companion(m), m, [] { return std::string(); });
    }
  }

  int companion(int module) const {
    const int parent = tree_.nodes[module].parent;
    if (!tree_.nodes[parent].sequential) return parent;
    const std::vector<int>& siblings = tree_.nodes[parent].children;
    const auto at = std::find(siblings.begin(), siblings.end(), module);
    if (at != siblings.begin()) return *std::prev(at);
    const auto weighty =
        std::find_if(at, siblings.end(), [this](int sibling) { return weighty_[sibling]; });
    return weighty == siblings.end() ? parent : *weighty;
  }

  const ModuleTree& tree_;
  const std::vector<simulate::BufferUse>& buffer_uses_;
  const std::vector<simulate::StateChange>& state_;
  std::vector<std::vector<int>> users_;  // of every parameter: modules that hold or use it
  JoinedModules joined_;
  std::vector<bool> weighty_;  // some weight is held or used in the subtree
};

}  // namespace

NodeGroups group_modules(const ModuleTree& tree,
                         const std::vector<simulate::WeightUse>& foreign_uses,
                         const std::vector<int>& fixed,
                         const std::vector<simulate::BufferUse>& buffer_uses,
                         const std::vector<simulate::StateChange>& state) {
  SMP_ASSERT(fixed.size() == tree.nodes.size() && !fixed.empty());
  return Grouping(tree, foreign_uses, buffer_uses, fixed, state).run();
}

}  // namespace smp::partitioning
