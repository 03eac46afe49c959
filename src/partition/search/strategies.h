// partition/search/strategies.h: ways to spread the nodes of a cost tree over stages. Each returns
// the stage of every node, keeps fixed nodes where they are, and is a pure, deterministic function.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/search/dhondt.h"
#include "simulate/machine.h"

namespace smp::partitioning {

/// The paper's algorithm: Algorithms 1 and 2 over the tree, seats by D'Hondt. Beyond the paper: no
/// more seats for a subtree than it has nodes, a seat counts by the speed of its stage, and stages
/// that fixed nodes half fill take no part. No stage stays empty if there are nodes enough.
/// @param ties  the rule for equal claims, which the paper leaves open
std::vector<int> tree_partition(const CostTree& tree, const simulate::Machine& machine,
                                SeatTies ties = SeatTies::kFewestSeats);

/// Cuts the nodes in execution order, at any depth, into one run per stage, so that the largest
/// load is least; of such cuts it takes one that opens the fewest inner nodes. No stage stays empty
/// if there are nodes enough.
/// @param slack  the share by which the maximum may grow where that opens fewer nodes
std::vector<int> contiguous_partition(const CostTree& tree, const simulate::Machine& machine,
                                      double slack = 0);

/// Cuts the nodes in execution order into `loops` runs per stage and deals them round the stages. A
/// microbatch visits each stage `loops` times, so the pipeline fills faster, for more messages; and
/// many small runs balance better than few large ones.
std::vector<int> looped_partition(const CostTree& tree, const simulate::Machine& machine,
                                  int loops);

/// A function that judges a placement; a smaller result is better.
using Judge = std::function<double(const std::vector<int>& stages_of_nodes)>;

/// Returns the best placement found from `starts` by moving and swapping boundaries, single nodes
/// and subtrees; the best of all where there are no more than it may judge.
/// @param budget  the most calls of `judge`
std::vector<int> search_partition(const CostTree& tree, const simulate::Machine& machine,
                                  const std::vector<std::vector<int>>& starts, const Judge& judge,
                                  int budget);

/// Returns the bottleneck of a placement: the largest cost of a stage divided by its speed.
double bottleneck(const CostTree& tree, const std::vector<int>& stages_of_nodes,
                  const simulate::Machine& machine);

/// Returns a lower bound on the bottleneck of every placement of these nodes, the largest of
/// - total cost / total speed: loads add up to the total, so they cannot all be below the mean;
/// - the level of a stage by the nodes that are fixed to it;
/// - for each k up to the stages: the k largest free nodes / the k fastest stages, since they
///   lie on at most k stages (k = 1: the largest indivisible node);
/// - for each k: the k + 1 smallest of the k * stages + 1 largest free nodes / the fastest stage,
///   since one stage gets k + 1 of these.
double bottleneck_lower_bound(const CostTree& tree, const simulate::Machine& machine);

}  // namespace smp::partitioning
