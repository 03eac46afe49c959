// partition/search/search_budget.h: how much work a search may take. Counts only, so that every
// machine takes the same.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/model/cost_tree.h"

namespace smp::partitioning {

/// Module calls that are simulated for each outcome that is reported.
constexpr std::int64_t kMostCallsOfOutcome = 500'000;

/// The work of the searches for one plan.
class SearchBudget {
 public:
  /// @param microbatches         of the step
  /// @param calls_of_microbatch  module calls that are simulated for one of them
  SearchBudget(int microbatches, std::int64_t calls_of_microbatch)
      : microbatches_(microbatches), calls_of_microbatch_(calls_of_microbatch) {}

  /// Returns the microbatches of the steps that a search has simulated.
  [[nodiscard]] std::int64_t sample() const;
  /// Returns the judgements of one search.
  [[nodiscard]] int judgements() const;
  /// Returns the judgements of one more search where memory decides, of a model that is placed by
  /// `costs`: all placements if there are not too many. 0: such a search would be no larger.
  [[nodiscard]] int judgements_for_memory(const CostTree& costs, int stages) const;

 private:
  int microbatches_;
  std::int64_t calls_of_microbatch_;
};

/// Returns the numbers of microbatches in flight to try, from the most on: all, or some that spread
/// evenly.
/// @param active_microbatches  the most that may be in flight
/// @param microbatches         of the step
[[nodiscard]] std::vector<int> numbers_in_flight(int active_microbatches, int microbatches);

}  // namespace smp::partitioning
