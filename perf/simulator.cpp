// perf/simulator.cpp: simulated step times against real ones. Modules sleep instead of computing,
// so ranks may outnumber the cores. The simulator gets their times as a tracer would measure them,
// and what a message costs, which one microbatch alone shows.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "d2d/mpi_session.h"
#include "harness.h"
#include "simulate/simulator.h"
#include "sleeping_stages.h"
#include "smp/session.h"

namespace smp::perf {
namespace {

/// The first steps of a setting: they stand for the tracer.
const int kTracedSteps = rounds(4);
constexpr double kBackwardRatio = 2;
/// Simulations of a step, whose median counts.
constexpr int kSeeds = 25;

/// Whether the rules of the simulator were compared with real steps of a setting while they were
/// written.
enum class Use { kSeen, kHeldOut, kOther };

struct Setting {
  int microbatches = 0;
  int cap = 0;                   // 0: simple
  std::vector<double> stage_ms;  // forward; one value: of every stage
  Use use = Use::kOther;
};

/// The committed table.
std::vector<Setting> settings_for(int ranks) {
  using enum Use;
  switch (ranks) {
    case 2:
      return {{8, 4, {10}, kSeen},     {8, 0, {10}, kSeen},        {6, 2, {10}, kSeen},
              {6, 4, {10, 20}, kSeen}, {5, 0, {16, 10}, kHeldOut}, {10, 3, {14, 10}, kHeldOut}};
    case 4:
      return {{8, 6, {10}, kSeen},
              {8, 0, {10}, kSeen},
              {8, 8, {12, 8, 16, 10}, kSeen},
              {6, 0, {8, 16, 10, 12}, kSeen},
              {12, 5, {10}, kHeldOut},
              {8, 6, {16, 12, 10, 8}, kHeldOut}};
    case 8:
      return {{8, 10, {10}, kSeen},
              {8, 0, {10}, kSeen},
              {12, 16, {10, 12, 8, 10, 14, 10, 8, 12}, kSeen},
              {10, 8, {10}, kSeen},
              {10, 0, {8, 10, 12, 14, 14, 12, 10, 8}, kHeldOut},
              {10, 12, {12, 10, 10, 8, 10, 14, 10, 10}, kHeldOut}};
    default:
      return {{2 * ranks, ranks + 2, {10}, kOther}, {2 * ranks, 0, {10}, kOther}};
  }
}

/// "p4_m8_interleaved6_ms12-8-16-10".
std::string name_of(const Setting& setting) {
  auto name = "p" + std::to_string(size()) + "_m" + std::to_string(setting.microbatches);
  name += setting.cap == 0 ? "_simple" : "_interleaved" + std::to_string(setting.cap);
  const char* separator = "_ms";
  for (const double ms : setting.stage_ms) {
    name += base::concat(separator, ms);
    separator = "-";
  }
  return name;
}

StageTimes times_of(const Setting& setting) {
  auto forward = setting.stage_ms;
  if (forward.size() == 1) forward.resize(static_cast<std::size_t>(size()), forward[0]);
  auto backward = forward;
  for (double& ms : backward) ms *= kBackwardRatio;
  return {.forward = forward, .backward = backward};
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double mean(const std::vector<double>& values) {
  return sum(values) / static_cast<double>(values.size());
}

/// What a tracer would find out.
struct Traced {
  StageTimes mean;
  double jitter = 0;  ///< standard deviation of a sleep, as a share of it
};

/// How long the stages slept in the first steps.
Traced trace_of(const std::vector<SleepingStep>& steps) {
  Traced traced;
  std::vector<double> squares;
  for (int stage = 0; stage < size(); ++stage) {
    for (auto* phase : {&traced.mean.forward, &traced.mean.backward}) {
      std::vector<double> all;
      for (int step = 0; step < kTracedSteps; ++step) {
        const auto some = lengths(steps[step].sleeps[stage], phase == &traced.mean.backward);
        all.insert(all.end(), some.begin(), some.end());
      }
      const double usual = mean(all);
      phase->push_back(usual);
      for (const double one : all) squares.push_back((one / usual - 1) * (one / usual - 1));
    }
  }
  traced.jitter = std::sqrt(mean(squares));
  return traced;
}

/// Milliseconds from the moment a rank is done until the next one is at work. One microbatch sleeps
/// on one rank at a time; the rest of its step are messages: a request and an answer to each other
/// rank, forward and backward.
double message_ms(int steps) {
  std::vector<double> costs;
  for (const auto& step : run_sleeping_steps(times_of({1, 0, {10}}), 1, steps)) {
    double rest = step.milliseconds;
    for (const auto& sleeps : step.sleeps) {
      rest -= sum(lengths(sleeps, false)) + sum(lengths(sleeps, true));
    }
    costs.push_back(rest / (4 * (size() - 1)));
  }
  return median(costs);
}

/// A machine whose messages cost `message_ms`.
simulate::Machine machine_with(double message_ms) {
  simulate::Machine machine;
  machine.stages = size();
  machine.set_message_seconds(message_ms / 1000);
  return machine;
}

/// Milliseconds of a step, simulated.
double predict(const Setting& setting, const Traced& traced, const simulate::Machine& machine) {
  simulate::Trace trace;
  trace.calls.push_back({.sequential = true});
  std::vector<int> stages = {0};
  for (int stage = 0; stage < size(); ++stage) {
    simulate::TracedCall call;
    call.module = stage + 1;
    call.caller = 0;
    call.after.seconds = traced.mean.forward[stage] / 1000;
    trace.calls.push_back(call);
    stages.push_back(stage);
  }
  trace.backward_ratio = sum(traced.mean.backward) / sum(traced.mean.forward);
  const auto schedule = schedule::make_schedule(setting.cap == 0 ? "simple" : "interleaved",
                                                {size(), setting.microbatches, setting.cap});
  simulate::SimulationOptions options;
  options.microbatches = setting.microbatches;
  options.schedule = schedule.get();
  options.jitter = traced.jitter;
  std::vector<double> durations;
  for (options.seed = 0; options.seed < kSeeds; ++options.seed) {
    durations.push_back(1000 * simulate::simulate(trace, stages, machine, options).seconds);
  }
  return median(durations);
}

/// Predicted and measured milliseconds.
struct Comparison {
  double predicted = 0, measured = 0;
  double error() const { return std::abs(predicted / measured - 1); }
};

Comparison compare(const Setting& setting, const simulate::Machine& machine, int steps) {
  const auto done =
      run_sleeping_steps(times_of(setting), setting.microbatches, kTracedSteps + steps);
  std::vector<double> durations;
  for (int i = kTracedSteps; i < kTracedSteps + steps; ++i) {
    durations.push_back(done[i].milliseconds);
  }
  return {predict(setting, trace_of(done), machine), median(durations)};
}

void add_row(Report& report, const Setting& setting, const Comparison& result) {
  const char* set = setting.use == Use::kSeen      ? "seen."
                    : setting.use == Use::kHeldOut ? "held_out."
                                                   : "other.";
  char note[80];
  std::snprintf(note, sizeof note, "predicted %.1f ms, measured %.1f ms", result.predicted,
                result.measured);
  report.add("step_error." + (set + name_of(setting)), result.error(), "1", note);
}

/// Of the whole table, as far as it was measured.
void add_means(Report& report) {
  const auto add = [&](const char* metric, const char* prefix, const char* note) {
    const auto errors = report.values(prefix);
    if (!errors.empty()) {
      report.add(metric, mean(errors), "1", std::to_string(errors.size()) + " settings" + note);
    }
  };
  add("step_error.mean", "step_error.seen.", "; aim: at most 0.05");
  add("step_error.held_out.mean", "step_error.held_out.p",
      " not looked at while the simulator was written; aim: at most 0.05");
}

struct Options {
  int steps = rounds(9);
  Setting own;  // instead of the table
  std::string schedule;
};

/// Empty if only the help was wanted.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  CLI::App app("Simulated step times against real ones, with modules that sleep",
               "smp perf simulator");
  app.footer(
      "--ranks P starts P ranks; without it 2, 4 and 8. Without a setting the committed table is "
      "measured.");
  app.add_option("--steps", options.steps, "to measure")->check(CLI::PositiveNumber);
  app.add_option("--microbatches", options.own.microbatches, "in a step (default: 2 a rank)")
      ->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "default: interleaved")
      ->check(CLI::IsMember({"interleaved", "simple"}));
  app.add_option("--active-microbatches", options.own.cap,
                 "most in flight, for interleaved (default: ranks + 2)")
      ->check(CLI::PositiveNumber);
  app.add_option("--stage-ms", options.own.stage_ms,
                 "forward of each stage, or one value for all (default: 10); backward takes twice")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  if (!parse_options(app, argc, argv)) return std::nullopt;
  return options;
}

/// The user's setting, or the table.
std::vector<Setting> chosen_settings(const Options& options, int ranks) {
  auto own = options.own;
  if (own.microbatches == 0 && own.cap == 0 && own.stage_ms.empty() && options.schedule.empty()) {
    auto table = settings_for(ranks);
    if (brief()) table.resize(1);
    return table;
  }
  if (own.stage_ms.empty()) own.stage_ms = {10};
  const auto values = own.stage_ms.size();
  SMP_REQUIRE(values == 1 || values == static_cast<std::size_t>(ranks), "--stage-ms has ", values,
              " values for ", ranks, " ranks; give one for each, or one for all");
  if (own.microbatches == 0) own.microbatches = 2 * ranks;
  if (options.schedule == "simple") {
    SMP_REQUIRE(own.cap == 0, "--active-microbatches is for the interleaved schedule");
  } else if (own.cap == 0) {
    own.cap = ranks + 2;
  }
  return {own};
}

Config config_of(const Setting& setting) {
  Config config;
  config.microbatches = setting.microbatches;
  config.pipeline = setting.cap == 0 ? "simple" : "interleaved";
  if (setting.cap > 0) config.active_microbatches = setting.cap;
  config.intra_op_threads = 1;
  return config;
}

void run(int argc, char** argv) {
  const auto options = parse(argc, argv);
  if (!options) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() > 1, "perf simulator needs at least 2 ranks; give --ranks");
  auto report = report_of_ranks(mpi.rank().value(), "simulator", Report::Earlier::kKept);
  double cost = 0;
  in_session(argc, argv, config_of({1, 0, {10}}), [&] { cost = message_ms(options->steps); });
  if (report) report->add("message.p" + std::to_string(mpi.size()), 1000 * cost, "us");
  for (const auto& setting : chosen_settings(*options, mpi.size())) {
    in_session(argc, argv, config_of(setting), [&] {
      const auto result = compare(setting, machine_with(cost), options->steps);
      if (report) add_row(*report, setting, result);
    });
  }
  if (!report) return;
  add_means(*report);
  report->finish();
}

}  // namespace
}  // namespace smp::perf

int main(int argc, char** argv) {
  return smp::perf::run_program([&] { smp::perf::run(argc, argv); });
}
