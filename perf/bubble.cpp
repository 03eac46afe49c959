// perf/bubble.cpp: how close a pipeline comes to its ideal step time, (m + p - 1)(F + B) for p
// stages and m microbatches. Modules sleep instead of computing, so ranks may outnumber the cores.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d2d/mpi_session.h"
#include "harness.h"
#include "sleeping_stages.h"
#include "smp/session.h"

namespace smp::perf {
namespace {

struct Options {
  int microbatches = 0;  // 0: 4 a rank
  int steps = rounds(9);
  double forward_ms = brief() ? 2 : 10, backward_ms = 2 * forward_ms;
  std::string schedule;  // empty: both
};

int most_at_once(const std::vector<std::vector<Sleep>>& ranks) {
  std::vector<std::pair<double, int>> changes;
  for (const auto& sleeps : ranks) {
    for (const auto& sleep : sleeps) {
      changes.emplace_back(sleep.start, 1);
      changes.emplace_back(sleep.end, -1);
    }
  }
  std::sort(changes.begin(), changes.end());
  int inside = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, inside += change);
  return most;
}

/// Mean time a rank really slept in a step.
double mean_slept(const std::vector<std::vector<Sleep>>& ranks) {
  double sum = 0;
  for (const auto& sleeps : ranks) {
    for (const auto& sleep : sleeps) sum += sleep.end - sleep.start;
  }
  return sum / static_cast<double>(ranks.size());
}

struct Measurement {
  std::vector<double> step_ms, slept_ms;
  int ranks_inside = 0;
};

/// By hand one module a rank, for the planner four times as many, each a quarter as long.
Measurement measure(const Options& options, Placed placed) {
  const int parts = placed == Placed::kByHand ? 1 : 4;
  const auto modules = static_cast<std::size_t>(size() * parts);
  const StageTimes times{std::vector<double>(modules, options.forward_ms / parts),
                         std::vector<double>(modules, options.backward_ms / parts)};
  Measurement result;
  for (const auto& step : run_sleeping_steps(times, options.microbatches, options.steps, placed)) {
    result.step_ms.push_back(step.milliseconds);
    result.slept_ms.push_back(mean_slept(step.sleeps));
    result.ranks_inside = std::max(result.ranks_inside, most_at_once(step.sleeps));
  }
  return result;
}

void add_rows(Report& report, const Options& options, const std::string& schedule, Placed placed,
              const Measurement& measured) {
  const auto setting = ".p" + std::to_string(size()) + "_m" + std::to_string(options.microbatches);
  const std::string prefix = (schedule == "interleaved" ? "" : schedule + ".") +
                             std::string(placed == Placed::kByHand ? "" : "planned.");
  const double cell = options.forward_ms + options.backward_ms;
  const double ideal = (options.microbatches + size() - 1) * cell;
  std::vector<double> ratios;
  for (const double duration : measured.step_ms) ratios.push_back(duration / ideal);
  report.add(prefix + "step_over_ideal" + setting, median(ratios), "1",
             schedule + (placed == Placed::kByHand ? "" : ", placed by the planner") +
                 ", F = " + std::to_string(std::lround(options.forward_ms)) + " ms, B = " +
                 std::to_string(std::lround(options.backward_ms)) + " ms; aim: at most 1.05");
  report.add(prefix + "step_over_ideal.p90" + setting, percentile(ratios, 0.9), "1");
  report.add(prefix + "slept_over_nominal" + setting,
             median(measured.slept_ms) / (options.microbatches * cell), "1",
             "how late the machine wakes sleepers");
  report.add(prefix + "ranks_inside_modules" + setting, measured.ranks_inside, "1",
             "most at one time");
}

/// Empty if only the help was wanted.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of a pipeline of sleeping modules over the ideal one", "smp perf bubble");
  app.footer("--ranks P starts P ranks; without it 2, 4 and 8.");
  app.add_option("--microbatches", options.microbatches, "in a step (default: 4 a rank)")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "to measure")->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "default: both")
      ->check(CLI::IsMember({"interleaved", "simple"}));
  app.add_option("--forward-ms", options.forward_ms, "F")->check(CLI::PositiveNumber);
  app.add_option("--backward-ms", options.backward_ms, "B")->check(CLI::PositiveNumber);
  if (!parse_options(app, argc, argv)) return std::nullopt;
  return options;
}

void run(int argc, char** argv) {
  auto options = parse(argc, argv);
  if (!options) return;
  const d2d::MpiSession mpi;
  if (options->microbatches == 0) options->microbatches = 4 * mpi.size();
  auto report = report_of_ranks(mpi.rank().value(), "bubble", Report::Earlier::kKept);
  for (const std::string schedule : {"interleaved", "simple"}) {
    if (!options->schedule.empty() && schedule != options->schedule) continue;
    const Config config{.microbatches = options->microbatches,
                        .pipeline = schedule,
                        .plan_cache = "off",
                        .intra_op_threads = 1};
    for (const auto placed : {Placed::kByHand, Placed::kByPlanner}) {
      auto planned = config;
      if (placed == Placed::kByPlanner)
        planned.trace_repeats = 1;  // operators that sleep cost nothing
      in_session(argc, argv, planned, [&] {
        const auto measured = measure(*options, placed);
        if (report) add_rows(*report, *options, schedule, placed, measured);
      });
    }
  }
  if (report) report->finish();
}

}  // namespace
}  // namespace smp::perf

int main(int argc, char** argv) {
  return smp::perf::run_program([&] { smp::perf::run(argc, argv); });
}
