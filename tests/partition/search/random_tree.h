// Models made of dice, for property tests and for measurements: the same seed, the same model.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

struct RandomModel {
  ModuleTree tree;
  simulate::Trace trace;
  std::vector<int> fixed;  ///< free of contradictions: subtrees of the model, without tied weights
};

struct RandomModelOptions {
  int modules = 30;       ///< below the model itself
  bool oddities = true;   ///< tied and foreign weights, bound, weightless and never called modules
  int pinned_stages = 0;  ///< stages that one subtree each is pinned to
};

/// Grows a tree with leaves of 4 B to 400 kB, and runs every parent's children in a random order,
/// some of them twice.
class RandomModelMaker {
 public:
  RandomModelMaker(std::uint64_t seed, const RandomModelOptions& options)
      : options_(options), random_(seed) {}

  RandomModel make() {
    model_.tree.add("", -1);
    for (int m = 1; m <= options_.modules; ++m) add_module(m);
    add_weights();
    if (options_.oddities) tie_weights();
    run_model();
    model_.fixed.assign(model_.tree.nodes.size(), -1);
    for (int stage = 0; stage < options_.pinned_stages; ++stage) pin(stage);
    return std::move(model_);
  }

 private:
  /// 0 to `count` - 1; the same on every platform, unlike the standard distributions.
  int below(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }
  bool odd(int percent) { return options_.oddities && chance(percent); }

  void add_module(int index) {
    // Half of them below one of the last few, so that deep trees and wide ones both come up.
    const int parent = chance(50) ? below(index) : index - 1 - below(index < 5 ? index : 5);
    const std::string& above = model_.tree.nodes[parent].path;
    const std::string path = (above.empty() ? "" : above + ".") + "m" + std::to_string(index);
    const int node = model_.tree.add(path, parent);
    model_.tree.nodes[node].sequential = odd(20);
    if (odd(10)) model_.tree.nodes[node].stays_because = "its class was not declared";
  }

  void add_weights() {
    for (ModuleNode& node : model_.tree.nodes) {
      if (!node.children.empty() ? !chance(10) : odd(25)) continue;
      const std::int64_t bytes = 4 * (1 + std::int64_t{below(316)} * below(316));
      node.parameters.push_back({"weight", static_cast<int>(model_.tree.parameters.size())});
      model_.tree.parameters.push_back({node.path + ".weight",
                                        "float32[" + std::to_string(bytes / 4) + "]", bytes / 4,
                                        bytes, bytes});
    }
  }

  void tie_weights() {
    const int weights = static_cast<int>(model_.tree.parameters.size());
    const int modules = static_cast<int>(model_.tree.nodes.size());
    if (weights == 0) return;
    for (int i = 0; i < modules / 15; ++i) {
      const int user = 1 + below(modules - 1);
      const int weight = below(weights);
      if (chance(50)) {
        model_.tree.nodes[user].parameters.push_back({"tied" + std::to_string(i), weight});
      } else {
        model_.trace.foreign_uses.push_back({user, weight});
      }
    }
  }

  void run_model() {
    for (const int child : order_of(0)) run(child, -1);
    model_.trace.body_after.seconds = 1e-6 * below(10);
  }

  void run(int module, int caller) {
    if (odd(3)) return;
    const int call = static_cast<int>(model_.trace.calls.size());
    const auto bytes = [this] { return std::int64_t{1000} * below(100); };
    const bool leaf = model_.tree.nodes[module].children.empty();
    simulate::TracedCall made;
    made.module = module;
    made.caller = caller;
    made.before.seconds = 1e-6 * below(10);
    made.after = {1e-6 * below(leaf ? 1000 : 10), bytes(), 0};
    made.input_bytes = bytes();
    made.output_bytes = bytes();
    made.sequential = model_.tree.nodes[module].sequential;
    model_.trace.calls.push_back(made);
    for (const int child : order_of(module)) run(child, call);
  }

  std::vector<int> order_of(int parent) {
    std::vector<int> order = model_.tree.nodes[parent].children;
    if (model_.tree.nodes[parent].sequential || order.empty()) return order;
    for (std::size_t i = order.size(); i > 1; --i) {
      if (chance(20)) std::swap(order[i - 1], order[below(static_cast<int>(i))]);
    }
    if (odd(5)) order.push_back(order.front());
    return order;
  }

  void pin(int stage) {
    const int top = 1 + below(static_cast<int>(model_.tree.nodes.size()) - 1);
    if (!may_pin(top)) return;
    for (const int module : subtree(top)) model_.fixed[module] = stage;
  }

  bool may_pin(int top) const {
    if (!model_.tree.nodes[top].movable()) return false;
    for (const int module : subtree(top)) {
      if (model_.fixed[module] >= 0) return false;
      for (const simulate::WeightUse& use : model_.trace.foreign_uses) {
        if (use.module == module) return false;
      }
      for (const OwnParameter& own : model_.tree.nodes[module].parameters) {
        if (users(own.parameter) > 1) return false;
      }
    }
    return true;
  }

  int users(int parameter) const {
    int count = 0;
    for (const ModuleNode& node : model_.tree.nodes) {
      for (const OwnParameter& own : node.parameters) count += own.parameter == parameter;
    }
    for (const simulate::WeightUse& use : model_.trace.foreign_uses)
      count += use.parameter == parameter;
    return count;
  }

  std::vector<int> subtree(int top) const {
    std::vector<int> modules{top};
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const auto& children = model_.tree.nodes[modules[i]].children;
      modules.insert(modules.end(), children.begin(), children.end());
    }
    return modules;
  }

  const RandomModelOptions options_;
  std::mt19937_64 random_;
  RandomModel model_;
};

inline RandomModel random_model(std::uint64_t seed, const RandomModelOptions& options = {}) {
  return RandomModelMaker(seed, options).make();
}

}  // namespace smp::partitioning
