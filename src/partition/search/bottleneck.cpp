// partition/search/bottleneck.cpp: how well a placement balances, and how well any could.
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

struct Loads {
  std::vector<double> speeds;  // of the stages, fastest first
  std::vector<double> items;   // own costs of free nodes, largest first
  double fixed = 0;            // highest level of a stage by fixed nodes alone
  double total = 0;            // all costs, fixed or free
};

Loads loads_of(const CostTree& tree, const simulate::Machine& machine) {
  Loads loads;
  std::vector<double> fixed(machine.stages, 0);
  for (const CostNode& node : tree.nodes) {
    loads.total += node.own;
    if (node.fixed < 0) {
      loads.items.push_back(node.own);
    } else {
      fixed.at(node.fixed) += node.own;
    }
  }
  for (int stage = 0; stage < machine.stages; ++stage) {
    loads.speeds.push_back(machine.speed(stage));
    loads.fixed = std::max(loads.fixed, fixed[stage] / machine.speed(stage));
  }
  std::sort(loads.speeds.begin(), loads.speeds.end(), std::greater<>());
  std::sort(loads.items.begin(), loads.items.end(), std::greater<>());
  return loads;
}

// The k largest items lie on at most k stages, which together are no faster than the k fastest.
double few_stages_bound(const Loads& loads) {
  double bound = 0;
  double items = 0;
  double speed = 0;
  for (std::size_t k = 0; k < std::min(loads.items.size(), loads.speeds.size()); ++k) {
    items += loads.items[k];
    speed += loads.speeds[k];
    bound = std::max(bound, items / speed);
  }
  return bound;
}

// Of the k * stages + 1 largest items, k + 1 lie on one stage. They are no smaller than the k + 1
// smallest of them, and the stage is no faster than the fastest.
double pigeonhole_bound(const Loads& loads) {
  const std::size_t stages = loads.speeds.size();
  double bound = 0;
  for (std::size_t k = 1; k * stages < loads.items.size(); ++k) {
    const auto last = loads.items.begin() + static_cast<std::ptrdiff_t>(k * stages) + 1;
    const double together = std::accumulate(last - static_cast<std::ptrdiff_t>(k) - 1, last, 0.0);
    bound = std::max(bound, together / loads.speeds.front());
  }
  return bound;
}

}  // namespace

double bottleneck(const CostTree& tree, const std::vector<int>& stages_of_nodes,
                  const simulate::Machine& machine) {
  SMP_ASSERT(stages_of_nodes.size() == tree.nodes.size());
  std::vector<double> loads(machine.stages, 0);
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    loads.at(stages_of_nodes[n]) += tree.nodes[n].own;
  }
  double highest = 0;
  for (int stage = 0; stage < machine.stages; ++stage) {
    highest = std::max(highest, loads[stage] / machine.speed(stage));
  }
  return highest;
}

double bottleneck_lower_bound(const CostTree& tree, const simulate::Machine& machine) {
  const Loads loads = loads_of(tree, machine);
  const double speed = std::accumulate(loads.speeds.begin(), loads.speeds.end(), 0.0);
  return std::max(
      {loads.total / speed, loads.fixed, few_stages_bound(loads), pigeonhole_bound(loads)});
}

}  // namespace smp::partitioning
