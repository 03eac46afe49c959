// partition/model/cost_tree.cpp: first every module's own weights, activations and time, then the
// nodes.
#include "partition/model/cost_tree.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/check.h"
#include "partition/model/node_groups.h"
#include "simulate/recomputation.h"

namespace smp::partitioning {
namespace {

// What modules have of their own, by index in ModuleTree::nodes.
struct OwnCosts {
  std::vector<std::int64_t> weight_bytes;
  std::vector<std::int64_t> gradient_bytes;
  std::vector<double> stepped_bytes;
  std::vector<std::int64_t> activation_bytes;
  std::vector<double> seconds;
  std::vector<int> first_call;  // index in Trace::calls of whichever microbatch called it first
};

constexpr int kNeverCalled = std::numeric_limits<int>::max();

// A tied weight counts where it was registered first.
template <class Bytes>
auto bytes_of_weights(const ModuleTree& tree, Bytes bytes) {
  using Sum = std::decay_t<std::invoke_result_t<Bytes, const TreeParameter&>>;
  std::vector<Sum> sums(tree.nodes.size(), 0);
  std::vector<bool> counted(tree.parameters.size(), false);
  for (std::size_t m = 0; m < tree.nodes.size(); ++m) {
    for (const OwnParameter& own : tree.nodes[m].parameters) {
      if (!counted.at(own.parameter)) sums[m] += std::invoke(bytes, tree.parameters[own.parameter]);
      counted[own.parameter] = true;
    }
  }
  return sums;
}

// Of one microbatch.
void add_calls(OwnCosts& costs, const simulate::Trace& trace) {
  const auto add = [&](int module, const simulate::ComputeInterval& interval) {
    costs.seconds.at(module) += interval.seconds + trace.backward_of(interval);
    costs.activation_bytes[module] += interval.activation_bytes;
  };
  add(0, trace.body_after);
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    const simulate::TracedCall& call = trace.calls[i];
    const int caller = call.caller < 0 ? 0 : trace.calls.at(call.caller).module;
    add(caller, call.before);
    add(call.module, call.after);
    int& first = costs.first_call[call.module];
    first = std::min(first, static_cast<int>(i));
  }
}

// Of a microbatch, on average over those that were traced.
OwnCosts own_costs(const ModuleTree& tree, const simulate::Trace& trace) {
  const std::size_t count = tree.nodes.size();
  OwnCosts costs{bytes_of_weights(tree, &TreeParameter::bytes),
                 bytes_of_weights(tree, &TreeParameter::gradient_bytes),
                 bytes_of_weights(tree, &TreeParameter::stepped_bytes),
                 std::vector<std::int64_t>(count, 0),
                 std::vector<double>(count, 0),
                 std::vector<int>(count, kNeverCalled)};
  costs.first_call[0] = -1;
  const std::vector<int> one_stage(count, 0);
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    const auto& traced = trace.of_microbatch(i);
    add_calls(costs,
              trace.recomputed.empty() ? traced : with_recomputation(traced, trace, one_stage));
  }
  const auto count_traced = static_cast<std::int64_t>(trace.num_traced());
  for (std::size_t m = 0; m < count; ++m) {
    costs.seconds[m] /= static_cast<double>(count_traced);
    costs.activation_bytes[m] /= count_traced;
  }
  return costs;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Scales to the sum 1; all zeros stay.
std::vector<double> shares(std::vector<double> values) {
  const double total = sum(values);
  for (double& value : values) value = total > 0 ? value / total : 0;
  return values;
}

// Equation 1 for every module alone. What the model has nothing of does not count: then the other
// part decides by itself, and the number of modules if both are empty.
std::vector<double> own_prices(const OwnCosts& own, simulate::CostSource source, double alpha) {
  const std::size_t count = own.seconds.size();
  std::vector<double> memory(count);
  for (std::size_t m = 0; m < count; ++m) {
    memory[m] = static_cast<double>(own.weight_bytes[m] + own.activation_bytes[m]);
  }
  const std::vector<double> one_each(count, 1.0);
  memory = shares(std::move(memory));
  const auto time = shares(source == simulate::CostSource::kCounts ? one_each : own.seconds);
  std::vector<double> prices(count);
  for (std::size_t m = 0; m < count; ++m) prices[m] = alpha * memory[m] + (1 - alpha) * time[m];
  if (sum(prices) > 0) return prices;
  return sum(time) > 0 ? time : sum(memory) > 0 ? memory : shares(one_each);
}

// The printed reading: a module's cost holds that of its submodules.
void add_submodules(const ModuleTree& tree, std::vector<double>& prices) {
  for (std::size_t m = prices.size(); m-- > 1;) prices[tree.nodes[m].parent] += prices[m];
}

// One node per group. With the first module's parent as parent, a node comes after its parent and
// no cycle can arise; further parents are pruned.
CostTree skeleton(const ModuleTree& tree, const NodeGroups& groups) {
  CostTree result;
  for (std::size_t m = 0; m < tree.nodes.size(); ++m) {
    const int module = static_cast<int>(m);
    const int first = groups.first[m];
    if (first == module) {
      CostNode node;
      node.parent = module == 0 ? -1 : result.node_of_module[tree.nodes[m].parent];
      node.fixed = groups.fixed[m];
      result.node_of_module.push_back(static_cast<int>(result.nodes.size()));
      if (node.parent >= 0) {
        result.nodes[node.parent].children.push_back(result.node_of_module.back());
      }
      result.nodes.push_back(std::move(node));
    } else {
      result.node_of_module.push_back(result.node_of_module[first]);
    }
    result.nodes[result.node_of_module.back()].modules.push_back(module);
  }
  return result;
}

// Children that were never called come last, in the order of registration.
void sort_by_execution(CostTree& tree, const OwnCosts& own) {
  std::vector<int> first_call(tree.nodes.size(), kNeverCalled);
  for (std::size_t n = tree.nodes.size(); n-- > 0;) {
    CostNode& node = tree.nodes[n];
    for (const int module : node.modules) {
      first_call[n] = std::min(first_call[n], own.first_call[module]);
    }
    std::stable_sort(node.children.begin(), node.children.end(),
                     [&](int a, int b) { return first_call[a] < first_call[b]; });
    if (node.parent >= 0) {
      first_call[node.parent] = std::min(first_call[node.parent], first_call[n]);
    }
  }
}

void fill_in(CostTree& tree, const ModuleTree& modules, const OwnCosts& own,
             const std::vector<double>& prices) {
  const double total = sum(prices);
  for (CostNode& node : tree.nodes) {
    for (const int module : node.modules) {
      node.own += prices[module] / total;
      node.seconds += own.seconds[module];
      node.weight_bytes += own.weight_bytes[module];
      node.gradient_bytes += own.gradient_bytes[module];
      node.stepped_bytes += own.stepped_bytes[module];
      node.buffer_bytes += modules.nodes[module].buffer_bytes;
      node.activation_bytes += own.activation_bytes[module];
    }
  }
  for (std::size_t n = tree.nodes.size(); n-- > 0;) {
    CostNode& node = tree.nodes[n];
    for (const int child : node.children) node.cost += tree.nodes[child].cost;
    node.cost += node.own;
  }
}

}  // namespace

CostTree make_cost_tree(const ModuleTree& tree, const simulate::Trace& trace,
                        const std::vector<int>& fixed, const CostOptions& options) {
  SMP_ASSERT(options.memory_weight >= 0 && options.memory_weight <= 1, options.memory_weight);
  const OwnCosts own = own_costs(tree, trace);
  std::vector<double> prices = own_prices(own, trace.source, options.memory_weight);
  if (options.reading == CostReading::kLiteral) add_submodules(tree, prices);
  CostTree result = skeleton(
      tree, group_modules(tree, trace.foreign_uses, fixed, trace.buffer_uses, trace.state));
  sort_by_execution(result, own);
  fill_in(result, tree, own, prices);
  return result;
}

std::vector<int> stages_of_modules(const CostTree& tree, const std::vector<int>& stages_of_nodes) {
  SMP_ASSERT(stages_of_nodes.size() == tree.nodes.size());
  std::vector<int> stages;
  stages.reserve(tree.node_of_module.size());
  for (const int node : tree.node_of_module) stages.push_back(stages_of_nodes[node]);
  return stages;
}

}  // namespace smp::partitioning
