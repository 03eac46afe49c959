// partition/plan/plan_promise.cpp: a row for the chosen strategy and for each of the others.
#include "partition/plan/plan_promise.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"

namespace smp::partitioning {
namespace {

using base::concat;

std::string counted(int count, const char* what) {
  const char* plural = what[std::strlen(what) - 1] == 'h' ? "es" : "s";
  return concat(count, " ", what, count == 1 ? "" : plural);
}

// The stage that comes closest to its limit, if there are limits.
std::string memory_text(const PlanSummary& summary) {
  const StageSummary* tightest = nullptr;
  const auto use = [](const StageSummary& stage) {
    return static_cast<double>(stage.most_memory()) / static_cast<double>(stage.memory_limit);
  };
  for (const StageSummary& stage : summary.stages) {
    if (stage.memory_limit == 0) continue;
    if (tightest == nullptr || use(stage) > use(*tightest)) tightest = &stage;
  }
  if (tightest == nullptr) return {};
  return concat("memory: stage ", tightest - summary.stages.data(),
                use(*tightest) > 1 ? " may exceed its limit most, at most "
                                   : " comes closest to its limit, at most ",
                short_bytes(tightest->most_memory()), " of ", short_bytes(tightest->memory_limit));
}

std::vector<std::string> outcome_cells(const PlanSummary::Outcome& outcome, bool times,
                                       const char* remark) {
  std::vector<std::string> cells = {outcome.strategy};
  if (times) cells.push_back(short_seconds(outcome.step_seconds));
  cells.push_back(fmt::format("{:.0f} %", 100 * outcome.bubble));
  cells.push_back(fmt::format("{:.2f}", outcome.bottleneck_to_bound));
  cells.emplace_back(outcome.fits   ? remark
                     : *remark != 0 ? concat(remark, ", does not fit")
                                    : "does not fit");
  return cells;
}

std::string outcomes_table(const PlanSummary& summary, int width) {
  const bool times = knows_times(summary);
  std::vector<TextTable::Column> titles = {{"strategy"}};
  if (times) titles.push_back({"step", true});
  titles.insert(titles.end(), {{"bubble", true}, {"bottleneck", true}, {""}});
  TextTable outcomes(titles);
  outcomes.add_row(outcome_cells(summary.chosen, times, summary.others.empty() ? "" : "chosen"));
  for (const auto& other : summary.others) outcomes.add_row(outcome_cells(other, times, ""));
  return outcomes.finish(width);
}

}  // namespace

bool knows_times(const PlanSummary& summary) { return summary.costs != "counts"; }

std::string plan_promise(const PartitionPlan& plan, int width) {
  const PlanSummary& summary = *plan.summary();
  const std::string setting =
      concat(counted(plan.pp_size(), "stage"), ", ", counted(summary.microbatches, "microbatch"),
             " a step, schedule ", summary.pipeline);
  return wrapped_lines(setting, width) + "\n" + outcomes_table(summary, width) +
         wrapped_lines(memory_text(summary), width);
}

}  // namespace smp::partitioning
