// partition/search/search_budget.cpp: bounds on simulated calls, and what they pay for.
#include "partition/search/search_budget.h"

#include <algorithm>

namespace smp::partitioning {
namespace {

/// Module calls that are simulated for one plan, in all: a bound on work that is the same on every
/// machine.
constexpr std::int64_t kMostCalls = 4'000'000;
constexpr int kMostJudgements = 300;
constexpr int kLeastJudgements = 12;
/// Where memory decides, so many calls and judgements are spent on one more search: nothing for a
/// large model, and for a small one what it takes to try all placements.
constexpr std::int64_t kMostCallsForMemory = 500'000;
constexpr std::int64_t kMostJudgementsForMemory = 1000;
/// Numbers of microbatches in flight to try, at the most.
constexpr int kMostInFlight = 8;

/// Returns the placements of what is free, or a number above `most` if there are more.
std::int64_t number_of_placements(const CostTree& costs, int stages, std::int64_t most) {
  std::int64_t placements = 1;
  for (std::size_t node = 1; node < costs.nodes.size() && placements <= most; ++node) {
    if (costs.nodes[node].fixed < 0) placements *= stages;
  }
  return placements;
}

}  // namespace

std::int64_t SearchBudget::sample() const {
  return std::min<std::int64_t>(
      {microbatches_,
       std::max<std::int64_t>(1, kMostCalls / (kLeastJudgements * calls_of_microbatch_))});
}

int SearchBudget::judgements() const {
  return static_cast<int>(std::clamp<std::int64_t>(kMostCalls / (sample() * calls_of_microbatch_),
                                                   kLeastJudgements, kMostJudgements));
}

int SearchBudget::judgements_for_memory(const CostTree& costs, int stages) const {
  const auto affordable = kMostCallsForMemory / (sample() * calls_of_microbatch_);
  const auto placements = number_of_placements(costs, stages, affordable);
  const auto budget =
      placements <= affordable ? placements : std::min(affordable, kMostJudgementsForMemory);
  return budget <= judgements() ? 0 : static_cast<int>(budget);
}

std::vector<int> numbers_in_flight(int active_microbatches, int microbatches) {
  const int most = std::min(active_microbatches, microbatches);
  if (most <= 1) return {active_microbatches};
  std::vector<int> numbers{active_microbatches};
  const int tried = std::min(most, kMostInFlight);
  for (int i = tried - 1; i >= 1; --i) {
    const int number = (most * i + tried - 1) / tried;
    if (number < numbers.back()) numbers.push_back(number);
  }
  if (numbers.back() > 1) numbers.push_back(1);
  return numbers;
}

}  // namespace smp::partitioning
