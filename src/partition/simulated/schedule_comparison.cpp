// partition/simulated/schedule_comparison.cpp: one simulation a schedule.
#include "partition/simulated/schedule_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"
#include "schedule/schedule.h"
#include "simulate/most_activations.h"
#include "simulate/simulator.h"

namespace smp::partitioning {
namespace {

constexpr int kWidth = 100;
constexpr int kActivationsWidth = 46;
const std::vector<std::string> kWithoutFile = {"simple", "interleaved", "1f1b", "zero_bubble"};

// What takes hours is a slip of the finger, or a damaged file.
void require_short_step(const PlannedStep& step, int microbatches) {
  constexpr double kMostCalls = 1e7;
  const double calls =
      static_cast<double>(microbatches) * static_cast<double>(step.trace.mean_calls());
  SMP_REQUIRE(calls <= kMostCalls, "a step of ", microbatches, " microbatches with ",
              step.trace.mean_calls(), " calls each is too long to be simulated: ", calls,
              " calls, at most ", kMostCalls, "; take fewer microbatches");
}

ScheduleOutcome outcome_of(const std::string& name, const std::vector<int>& stages,
                           const PlannedStep& step, int microbatches) {
  const auto schedule =
      schedule::make_schedule(name, {step.machine.stages, microbatches, step.active_microbatches});
  simulate::SimulationOptions options;
  options.microbatches = microbatches;
  options.schedule = schedule.get();
  const auto simulated = simulate::simulate(step.trace, stages, step.machine, options);
  return {name, simulated.seconds, simulated.bubble,
          simulate::most_activations(step.trace, stages, step.machine, options)};
}

std::string joined(const std::vector<std::int64_t>& bytes) {
  std::string text;
  for (const std::int64_t own : bytes) text += (text.empty() ? "" : ", ") + short_bytes(own);
  return text;
}

}  // namespace

std::vector<std::string> schedules_of(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "all") {
      names.insert(names.end(), kWithoutFile.begin(), kWithoutFile.end());
    } else if (!word.empty()) {
      names.push_back(word);
    }
  }
  return names;
}

std::vector<ScheduleOutcome> compare_schedules(const PartitionPlan& plan, const PlannedStep& step,
                                               const std::vector<std::string>& schedules,
                                               int microbatches) {
  const auto stages = stages_of(plan, step);
  require_short_step(step, microbatches > 0 ? microbatches : step.microbatches);
  std::vector<ScheduleOutcome> outcomes;
  for (const auto& name : schedules) {
    outcomes.push_back(
        outcome_of(name, stages, step, microbatches > 0 ? microbatches : step.microbatches));
  }
  return outcomes;
}

std::string comparison_table(const std::vector<ScheduleOutcome>& outcomes, const PlannedStep& step,
                             int microbatches, bool times) {
  const auto fastest = std::min_element(
      outcomes.begin(), outcomes.end(),
      [](const auto& a, const auto& b) { return a.step_seconds < b.step_seconds; });
  TextTable table({{"schedule"},
                   {"step", true},
                   {"bubble", true},
                   {"activations at most, by stage", false, kActivationsWidth},
                   {""}});
  for (const auto& outcome : outcomes) {
    std::string remark = outcome.schedule == step.pipeline ? "planned" : "";
    if (outcomes.size() > 1 && &outcome == &*fastest)
      remark += remark.empty() ? "fastest" : ", fastest";
    table.add_row({outcome.schedule,
                   times ? short_seconds(outcome.step_seconds)
                         : fmt::format("{:.2f}", outcome.step_seconds / fastest->step_seconds),
                   fmt::format("{:.1f} %", 100 * outcome.bubble), joined(outcome.activations),
                   remark});
  }
  const int count = microbatches > 0 ? microbatches : step.microbatches;
  return fmt::format("{} stages, {} microbatch{} a step; interleaved: {} in flight\n\n",
                     step.machine.stages, count, count == 1 ? "" : "es",
                     std::min(count, step.active_microbatches)) +
         table.finish(kWidth) +
         (times
              ? "simulated, not measured; activations with gradients and messages on their way, "
                "whatever the timing\n"
              : "simulated with counts of modules for costs: steps are multiples of the fastest\n");
}

}  // namespace smp::partitioning
