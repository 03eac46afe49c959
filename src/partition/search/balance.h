// partition/search/balance.h: evens out the load of stages by moving and swapping single nodes.
// Knows costs and seconds, but no time: a cheap guide for the search, which asks the simulator.
#pragma once

#include <vector>

#include "partition/model/cost_tree.h"
#include "simulate/machine.h"

namespace smp::partitioning {

struct BalanceOptions {
  /// The price of placing a node on another stage than its parent, as a share of an even load.
  double crossing_price = 0;
  /// The most nodes to look at; a node counts once for every move or swap that is tried with it.
  int budget = 1'000'000;
};

/// Brings the loads of all stages near each other: cost and seconds relative to the stage's share,
/// and where memory is limited bytes relative to the limit, or to the share if there are more bytes
/// than all limits allow. Moves nodes one by one or in pairs while that helps; fixed nodes and the
/// model itself stay.
std::vector<int> balanced(const CostTree& tree, const simulate::Machine& machine,
                          std::vector<int> stages, const BalanceOptions& options = {});

}  // namespace smp::partitioning
