// partition/plan/plan_reasons.cpp: compares each stage with the one whose modules run right before.
#include "partition/plan/plan_reasons.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "partition/model/placement_rules.h"
#include "partition/text/short_text.h"

namespace smp::partitioning {
namespace {

using base::concat;

constexpr int kNever = std::numeric_limits<int>::max();
constexpr std::size_t kShownTies = 2;

std::string name_of(const ModuleTree& tree, int module) {
  return module == 0 ? "the model" : tree.nodes[module].path;
}

// When each module, or the first one below it, is called; those that never are come last.
std::vector<int> first_calls(const ModuleTree& tree, const simulate::Trace& trace) {
  std::vector<int> first(tree.nodes.size(), kNever);
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    const auto& calls = trace.of_microbatch(i).calls;
    for (std::size_t call = 0; call < calls.size(); ++call) {
      int& known = first[calls[call].module];
      known = std::min(known, static_cast<int>(call));
    }
  }
  for (std::size_t i = tree.nodes.size(); i-- > 1;) {
    int& above = first[tree.nodes[i].parent];
    above = std::min(above, first[i]);
  }
  return first;
}

bool share_a_weight(const ModuleNode& one, const ModuleNode& other) {
  for (const OwnParameter& mine : one.parameters) {
    for (const OwnParameter& theirs : other.parameters) {
      if (mine.parameter == theirs.parameter) return true;
    }
  }
  return false;
}

class Reasoner {
 public:
  Reasoner(const ModuleTree& tree, const simulate::Trace& trace, const CostTree& costs,
           const simulate::Machine& machine, const std::vector<int>& stages,
           const std::vector<std::string>& by_hand, const std::vector<std::int64_t>& memory)
      : tree_(tree),
        costs_(costs),
        machine_(machine),
        stages_(stages),
        by_hand_(by_hand),
        memory_(memory),
        first_call_(first_calls(tree, trace)),
        own_(tree.nodes.size(), 0.0),
        own_bytes_(tree.nodes.size(), 0),
        loads_(machine.stages, 0.0),
        ties_(tree.nodes.size()) {
    add_up();
    find_ties(trace);
    in_order_.resize(tree.nodes.size());
    std::iota(in_order_.begin(), in_order_.end(), 0);
    std::stable_sort(in_order_.begin(), in_order_.end(),
                     [&](int a, int b) { return first_call_[a] < first_call_[b]; });
  }

  PlanReasons reasons() const {
    PlanReasons found;
    for (std::size_t i = 0; i < tree_.nodes.size(); ++i) {
      found.modules.push_back(reason_of_module(static_cast<int>(i)));
    }
    const auto entries = entries_of_stages();
    for (int stage = 0; stage < machine_.stages; ++stage) {
      found.stages.push_back(reason_of_stage(stage, entries[stage]) + ties_of_stage(stage));
    }
    return found;
  }

 private:
  void add_up() {
    for (const CostNode& node : costs_.nodes) {
      const int module = node.modules.front();
      const int stage = stages_[module];
      own_[module] = node.own;
      own_bytes_[module] = node.weight_bytes;
      loads_[stage] += node.own / machine_.speed(stage);
    }
  }

  void find_ties(const simulate::Trace& trace) {
    for (const CostNode& node : costs_.nodes) {
      for (const int module : node.modules) {
        const int other = first_that_shares(node, module);
        if (other != module) ties_[module] = concat("tied with ", name_of(tree_, other));
      }
    }
    const auto holders = holders_of_parameters(tree_);
    for (const simulate::WeightUse& use : trace.foreign_uses) {
      for (const int holder : holders.at(static_cast<std::size_t>(use.parameter))) {
        if (holder != use.module) ties_[holder] = concat("read by ", name_of(tree_, use.module));
      }
    }
    for (const simulate::BufferUse& use : trace.buffer_uses) {
      ties_[use.holder] = concat("buffer ", use.name, " used by ", name_of(tree_, use.module));
    }
  }

  // The first module of `node` that shares a weight with `module`; itself if none does.
  int first_that_shares(const CostNode& node, int module) const {
    if (tree_.nodes[module].parameters.empty()) return module;
    for (const int other : node.modules) {
      if (other == module) break;
      if (share_a_weight(tree_.nodes[other], tree_.nodes[module])) return other;
    }
    return module;
  }

  const std::string& hand(int module) const {
    static const std::string kNothing;
    return by_hand_.empty() ? kNothing : by_hand_[module];
  }

  std::string reason_of_module(int module) const {
    const ModuleNode& node = tree_.nodes[module];
    const bool top =
        module == 0 || stages_[node.parent] != stages_[module] || hand(node.parent) != hand(module);
    if (!hand(module).empty() && top) return hand(module);
    if (!ties_[module].empty()) return ties_[module];
    const bool bound = module != 0 && !node.movable() && tree_.nodes[node.parent].movable();
    if (bound && !node.parameters.empty()) {
      return concat("stays with its parent: ", node.stays_because);
    }
    return {};
  }

  // Modules that run on another stage than their parent, by stage, in order of execution.
  std::vector<std::vector<int>> entries_of_stages() const {
    std::vector<std::vector<int>> entries(machine_.stages);
    for (const int module : in_order_) {
      if (module == 0 || stages_[tree_.nodes[module].parent] == stages_[module]) continue;
      entries[stages_[module]].push_back(module);
    }
    return entries;
  }

  std::string reason_of_stage(int stage, const std::vector<int>& entries) const {
    if (stage == stages_[0]) return "the model itself runs here";
    if (entries.empty()) return "no module was left for it";
    const auto free = std::find_if(entries.begin(), entries.end(), [&](int module) {
      return hand(module).empty() && ties_[module].empty();
    });
    if (free != entries.end()) return compared(first_unit(*free), stage);
    const std::string& pin = hand(entries.front());
    return pin.empty() ? ties_[entries.front()] : pin;
  }

  double cost_on(int module, int stage) const {
    double sum = stages_[module] == stage ? own_[module] : 0;
    for (const int child : tree_.nodes[module].children) sum += cost_on(child, stage);
    return sum;
  }
  std::int64_t bytes_below(int module) const {
    std::int64_t sum = own_bytes_[module];
    for (const int child : tree_.nodes[module].children) sum += bytes_below(child);
    return sum;
  }
  bool whole(int module) const {
    const auto& children = tree_.nodes[module].children;
    return std::all_of(children.begin(), children.end(), [&](int child) {
      return stages_[child] == stages_[module] && whole(child);
    });
  }

  // What would move if the cut came later: the first module below that is not itself cut.
  int first_unit(int module) const {
    if (whole(module)) return module;
    int first = -1;
    for (const int child : tree_.nodes[module].children) {
      if (stages_[child] != stages_[module] || cost_on(child, stages_[module]) <= 0) continue;
      if (first < 0 || first_call_[child] < first_call_[first]) first = child;
    }
    return first < 0 ? module : first_unit(first);
  }

  // The stage of what runs right before `module`, other than its own.
  int stage_before(int module, int stage) const {
    int found = stages_[tree_.nodes[module].parent];
    for (const int other : in_order_) {
      if (first_call_[other] >= first_call_[module]) break;
      if (stages_[other] != stage && own_[other] > 0) found = stages_[other];
    }
    return found;
  }

  std::string number(double cost) const {
    char text[16];
    std::snprintf(text, sizeof text, machine_.stages > 32 ? "%.4f" : "%.3f", cost);
    return text;
  }

  std::string compared(int unit, int stage) const {
    const int before = stage_before(unit, stage);
    const double now = loads_[before];
    const double then = now + cost_on(unit, stage) / machine_.speed(before);
    const std::string name = name_of(tree_, unit);
    if (overfills(unit, before)) {
      return concat("memory: stage ", before, " holds ", short_bytes(memory_[before]), " of ",
                    short_bytes(machine_.memory[before]), ", too much for ", name, " as well");
    }
    if (then > std::max(now, loads_[stage])) {
      return concat("balance: ", name, " would raise stage ", before, " from ", number(now), " to ",
                    number(then));
    }
    return concat("balance: ", number(loads_[stage]), " here, ", number(now), " on stage ", before);
  }

  // Counts weights and what grows with them, not activations: less than what it would take.
  bool overfills(int unit, int stage) const {
    if (machine_.memory.empty() || machine_.memory[stage] == 0) return false;
    if (memory_[stage] > machine_.memory[stage]) return false;  // as it does already
    return memory_[stage] + bytes_below(unit) > machine_.memory[stage];
  }

  // "; a, b tied with shared".
  std::string ties_of_stage(int stage) const {
    std::map<std::string, std::vector<std::string>> tied;  // names by reason
    for (std::size_t i = 0; i < ties_.size(); ++i) {
      if (stages_[i] != stage || ties_[i].empty()) continue;
      tied[ties_[i]].push_back(name_of(tree_, static_cast<int>(i)));
    }
    std::string text;
    std::size_t shown = 0;
    for (const auto& [reason, names] : tied) {
      if (shown++ == kShownTies) return text + "; and more";
      text += concat("; ", names.front());
      for (std::size_t i = 1; i < std::min(names.size(), kShownTies); ++i) text += ", " + names[i];
      if (names.size() > kShownTies) text += concat(" and ", names.size() - kShownTies, " more");
      text += " " + reason;
    }
    return text;
  }

  const ModuleTree& tree_;
  const CostTree& costs_;
  const simulate::Machine& machine_;
  const std::vector<int>& stages_;
  const std::vector<std::string>& by_hand_;
  const std::vector<std::int64_t>& memory_;
  std::vector<int> first_call_;
  std::vector<double> own_;              // by module: of its node, at the node's first module
  std::vector<std::int64_t> own_bytes_;  // likewise
  std::vector<double> loads_;            // by stage: cost over speed
  std::vector<std::string> ties_;        // by module
  std::vector<int> in_order_;            // modules in order of first execution
};

}  // namespace

PlanReasons plan_reasons(const ModuleTree& tree, const simulate::Trace& trace,
                         const CostTree& costs, const simulate::Machine& machine,
                         const std::vector<int>& stages, const std::vector<std::string>& by_hand,
                         const std::vector<std::int64_t>& memory) {
  return Reasoner(tree, trace, costs, machine, stages, by_hand, memory).reasons();
}

}  // namespace smp::partitioning
