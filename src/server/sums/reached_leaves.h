// server/sums/reached_leaves.h: which leaves the graphs of executions lead to. Threads: the rank's.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

#include "server/sums/parameter_numbers.h"

namespace smp::server {

/// The pairs of execution and parameter of one microbatch. Nothing is allocated once the arrays
/// have grown.
class ReachedLeaves {
 public:
  struct Pair {
    ParameterNumber parameter;
    std::uint32_t execution;
  };

  /// `numbers` outlives this object; unknown leaves are added to it.
  explicit ReachedLeaves(ParameterNumbers& numbers) : numbers_(numbers) {}

  /// Forgets the pairs of the last microbatch.
  void clear() noexcept;
  /// Adds a pair for every leaf that backward from `roots` would reach.
  void walk(std::uint32_t execution, const torch::autograd::edge_list& roots);

  /// The pairs found since clear(), in the order of walks.
  const std::vector<Pair>& pairs() const noexcept { return pairs_; }
  /// A bound: the numbers of all parameters in pairs() are lower.
  ParameterNumber num_parameters() const noexcept { return numbers_.size(); }
  /// The number of graphs that were walked since clear().
  std::uint64_t walks() const noexcept { return walks_; }

 private:
  void visit(const torch::autograd::Edge& edge);

  ParameterNumbers& numbers_;
  std::vector<Pair> pairs_;
  std::uint64_t walks_ = 0;
  std::vector<torch::autograd::Node*> pending_nodes_;
  ska::flat_hash_map<const torch::autograd::Node*, std::uint64_t> seen_;  // by which walk
};

}  // namespace smp::server
