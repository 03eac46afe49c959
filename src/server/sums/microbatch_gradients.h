// server/sums/microbatch_gradients.h: what one microbatch has given to the parameters of this rank,
// and which of its executions may still give something (docs/design.md, Accumulation). Threads: the
// rank's.
#pragma once

#include <cstdint>
#include <vector>

#include "server/protocol/ids.h"
#include "server/protocol/order_key.h"
#include "server/sums/leaf_update.h"
#include "server/sums/parameter_numbers.h"
#include "server/sums/reached_leaves.h"

namespace smp::server {

/// The bookkeeping of GradientAccumulator for one microbatch; the accumulator writes it. Arrays are
/// kept for their capacity.
struct MicrobatchGradients {
  static constexpr std::uint32_t kNone = ExecutionId::kNone;

  struct Execution {
    OrderKey order;
    bool after_first_backward = false;
    bool closed = false;
    bool recorded = false;
    std::uint32_t place = kNone;           ///< in `places`, once they are known
    torch::autograd::edge_list roots;      ///< until it closes
    std::vector<ParameterNumber> waiters;  ///< cells of this microbatch; outdated ones among them
  };
  /// The state of one parameter: the gradients that the microbatch has given to it, and the
  /// executions that may still give one.
  struct Cell {
    std::uint32_t next = 0;  ///< executions of `reaching` in [next, end) are not passed
    std::uint32_t end = 0;
    std::uint32_t blocker = kNone;  ///< the execution at `next`, if the cell waits for it
    std::uint32_t sum = kNone;      ///< in WaitingGradients; none before the first contribution
  };
  struct AfterFirstBackward {
    ParameterNumber parameter;
    std::uint32_t execution;
    std::uint64_t arrival;
    LeafSum sum;
  };

  /// Adds an execution, which starts. @return its number
  std::uint32_t open(OrderKey order, bool after_first_backward);
  /// Finds out which executions reach which parameters. Called once, when the forward is done.
  void plan(ReachedLeaves& reached);
  /// Releases all tensors and graphs, and keeps the arrays.
  void clear() noexcept;

  bool forward_done = false;
  bool done = false;
  bool planned = false;
  std::uint32_t opened = 0;
  std::vector<Execution> executions;     ///< the first `opened` are the step's
  std::vector<std::uint32_t> places;     ///< executions by descending key, once `planned`
  std::vector<std::uint32_t> reaching;   ///< executions by parameter, then by place
  std::vector<Cell> cells;               ///< by parameter; may be shorter than the numbers
  std::vector<ParameterNumber> waiters;  ///< parameters that wait for its forward
  std::vector<AfterFirstBackward> rest;

 private:
  void find_places();
  void list_reaching(const ReachedLeaves& reached);
};

}  // namespace smp::server
