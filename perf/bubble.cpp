// perf/bubble.cpp: how close a pipeline comes to its ideal step time, (m + p - 1)(F + B) for p
// stages and m microbatches. Modules sleep instead of computing, so ranks may outnumber the cores.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/rank/rank.h"
#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "schedule/list_generators.h"
#include "simulate/fixed_order.h"
#include "sleeping_stages.h"
#include "smp/session.h"

namespace smp::perf::bubble {
namespace {

struct Options {
  int microbatches = 0;  // 0: 4 a rank
  int steps = rounds(9);
  double forward_ms = brief() ? 2 : 10, backward_ms = 2 * forward_ms;
  std::string schedule;  // empty: all
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
  std::vector<int> most_kept;  ///< microbatches, by rank
  StageTimes times;
};

enum class Mode { kDynamic, kStatic, kRelayedStatic };

/// What is compared with an ideal.
struct Contestant {
  std::string name;  ///< of its rows
  std::string pipeline;
  Placed placed = Placed::kByHand;
  Mode mode = Mode::kDynamic;
  double jitter = 0;

  /// Of a stage: the planner is to have a choice.
  int modules() const { return placed == Placed::kByHand ? 1 : 4; }

  std::string prefix() const {
    return (name == "interleaved" ? "" : name + ".") +
           std::string(placed == Placed::kByHand ? "" : "planned.");
  }
  bool splits_backward() const { return pipeline.starts_with("zero_bubble"); }
};

constexpr double kJitter = 0.2;

std::vector<Contestant> contestants() {
  using enum Placed;
  return {{"interleaved", "interleaved"},
          {"interleaved", "interleaved", kByPlanner},
          {"simple", "simple"},
          {"simple", "simple", kByPlanner},
          {"static", "interleaved", kByHand, Mode::kStatic},
          {"static", "interleaved", kByPlanner, Mode::kStatic},
          {"static_relayed", "interleaved", kByHand, Mode::kRelayedStatic},
          {"static_relayed", "interleaved", kByPlanner, Mode::kRelayedStatic},
          {"1f1b", "1f1b"},
          {"1f1b", "1f1b", kByPlanner},
          {"1f1b_2_more", "1f1b+2"},
          {"zero_bubble", "zero_bubble"},
          {"zero_bubble_2_more", "zero_bubble+2"},
          {"jitter20", "interleaved", kByHand, Mode::kDynamic, kJitter},
          {"jitter20.1f1b", "1f1b", kByHand, Mode::kDynamic, kJitter},
          {"jitter20.1f1b_2_more", "1f1b+2", kByHand, Mode::kDynamic, kJitter},
          {"jitter20.zero_bubble_2_more", "zero_bubble+2", kByHand, Mode::kDynamic, kJitter}};
}

/// All modules are equally long, lest what the machine adds to each sleep weighs more in some.
Measurement measure(const Options& options, const Contestant& contestant) {
  constexpr int kRecorded = 7;  // then steps are replayed
  const auto modules = static_cast<std::size_t>(size() * contestant.modules());
  Measurement result;
  result.times = {std::vector<double>(modules, options.forward_ms),
                  std::vector<double>(modules, options.backward_ms), contestant.jitter,
                  contestant.splits_backward() ? 0.5 : 0};
  const bool replays = contestant.mode != Mode::kDynamic;
  const int warm_up = replays && !brief() ? kRecorded : 1;
  result.most_kept.resize(static_cast<std::size_t>(size()));
  for (const auto& step : run_sleeping_steps(result.times, options.microbatches, options.steps,
                                             contestant.placed, warm_up)) {
    result.step_ms.push_back(step.milliseconds);
    result.slept_ms.push_back(mean_slept(step.sleeps));
    result.ranks_inside = std::max(result.ranks_inside, most_at_once(step.sleeps));
    for (std::size_t rank = 0; rank < step.most_kept.size(); ++rank) {
      result.most_kept[rank] = std::max(result.most_kept[rank], step.most_kept[rank]);
    }
  }
  return result;
}

double ideal_ms(const Options& options, const Contestant& contestant, const StageTimes& times) {
  const int p = size(), m = options.microbatches;
  if (contestant.jitter > 0) {
    return simulate::time_in_fixed_order(schedule::one_forward_one_backward_lists(p, m),
                                         [&](const schedule::Action& action, int rank) {
                                           const auto stage = static_cast<std::size_t>(rank);
                                           return action.kind == schedule::ActionKind::kForward
                                                      ? times.forward_of(stage, action.microbatch)
                                                      : times.backward_of(stage, action.microbatch);
                                         });
  }
  const double cell = contestant.modules() * (options.forward_ms + options.backward_ms);
  // I = W = B / 2: the bubble is (p - 1)(F + I - W).
  return m * cell + (p - 1) * (contestant.splits_backward() ? options.forward_ms : cell);
}

std::string note_of(const Options& options, const Contestant& contestant) {
  const std::string times = "F = " + std::to_string(std::lround(options.forward_ms)) +
                            " ms, B = " + std::to_string(std::lround(options.backward_ms)) +
                            " ms; ";
  const std::string mode = contestant.mode == Mode::kDynamic  ? ""
                           : contestant.mode == Mode::kStatic ? ", static mode"
                                                              : ", static mode, fast_mode = false";
  const std::string what = contestant.pipeline + mode +
                           (contestant.placed == Placed::kByHand
                                ? ""
                                : ", placed by the planner, " +
                                      std::to_string(contestant.modules()) + " modules a stage");
  if (contestant.jitter > 0) {
    return what + ", " + times + "sleeps vary by 20 %; over 1F1B to the letter, computed";
  }
  if (contestant.splits_backward()) return what + ", " + times + "over m (F + B) + (p - 1) F";
  if (contestant.mode == Mode::kRelayedStatic) return what + ", " + times + "results go to callers";
  return what + ", " + times + "aim: at most " + (size() == 2 ? "1.03" : "1.05");
}

/// Microbatches that the schedule lets each rank keep.
std::vector<int> kept_by_schedule(int microbatches) {
  const auto& schedule = Rank::current().schedule();
  std::vector<int> kept;
  for (int rank = 0; rank < size(); ++rank) {
    kept.push_back(schedule.most_alive(rank, microbatches));
  }
  return kept;
}

/// "4 3 2 1".
std::string spaced(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

void add_rows(Report& report, const Options& options, const Contestant& contestant,
              const Measurement& measured) {
  const auto setting = ".p" + std::to_string(size()) + "_m" + std::to_string(options.microbatches);
  const auto prefix = contestant.prefix();
  const double ideal = ideal_ms(options, contestant, measured.times);
  std::vector<double> ratios;
  for (const double duration : measured.step_ms) ratios.push_back(duration / ideal);
  report.add(prefix + "step_over_ideal" + setting, median(ratios), "1",
             note_of(options, contestant));
  report.add(prefix + "step_over_ideal.p90" + setting, percentile(ratios, 0.9), "1");
  const double nominal =
      options.microbatches * contestant.modules() * (options.forward_ms + options.backward_ms);
  report.add(prefix + "slept_over_nominal" + setting, median(measured.slept_ms) / nominal, "1",
             "how late the machine wakes sleepers");
  report.add(prefix + "ranks_inside_modules" + setting, measured.ranks_inside, "1",
             "most at one time");
  if (contestant.placed == Placed::kByPlanner) return;  // executions there are no microbatches
  const auto allowed = kept_by_schedule(options.microbatches);
  const auto sum = [](const std::vector<int>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  for (std::size_t rank = 0; rank < allowed.size(); ++rank) {
    SMP_REQUIRE(measured.most_kept[rank] <= allowed[rank], contestant.pipeline, ": rank ", rank,
                " kept the activations of ", measured.most_kept[rank],
                " microbatches, and its schedule allows ", allowed[rank]);
  }
  report.add(prefix + "kept_over_schedule" + setting, sum(measured.most_kept) / sum(allowed), "1",
             "microbatches kept at most by rank: " + spaced(measured.most_kept) +
                 "; allowed: " + spaced(allowed));
}

/// Empty if only the help was wanted.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of a pipeline of sleeping modules over the ideal one", "smp perf bubble");
  app.footer("--ranks P starts P ranks; without it 2, 4 and 8.");
  app.add_option("--microbatches", options.microbatches, "in a step (default: 4 a rank)")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "to measure")->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "name of rows; default: all");
  app.add_option("--forward-ms", options.forward_ms, "F of a module")->check(CLI::PositiveNumber);
  app.add_option("--backward-ms", options.backward_ms, "B of a module")->check(CLI::PositiveNumber);
  if (!parse_options(app, argc, argv)) return std::nullopt;
  return options;
}

Config config_of(const Options& options, const Contestant& contestant) {
  Config config{.microbatches = options.microbatches,
                .pipeline = contestant.pipeline,
                .plan_cache = "off",
                .intra_op_threads = 1};
  config.static_mode = contestant.mode != Mode::kDynamic;
  config.fast_mode = contestant.mode != Mode::kRelayedStatic;
  // Operators that sleep cost nothing.
  if (contestant.placed == Placed::kByPlanner) config.trace_repeats = 3;
  return config;
}

void run(int argc, char** argv) {
  auto options = parse(argc, argv);
  if (!options) return;
  const d2d::MpiSession mpi;
  if (options->microbatches == 0) options->microbatches = 4 * mpi.size();
  auto report = report_of_ranks(mpi.rank().value(), "bubble", Report::Earlier::kKept);
  for (const auto& contestant : contestants()) {
    if (!options->schedule.empty() && contestant.name != options->schedule) continue;
    in_session(argc, argv, config_of(*options, contestant), [&] {
      const auto measured = measure(*options, contestant);
      if (report) add_rows(*report, *options, contestant, measured);
    });
  }
  if (report) report->finish();
}

const Program program{"bubble", run};

}  // namespace
}  // namespace smp::perf::bubble
