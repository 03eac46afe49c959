// perf/simulator.cpp: simulated step times against real ones, in settings that are drawn by a seed
// which nobody has seen before. Chains of modules that sleep, so that ranks may outnumber the
// cores: the simulator gets their times as a tracer would measure them, and what a message costs,
// which one microbatch alone shows. And the models of the samples, which branch and compute: what
// their plans promise (with trace_repeats) against what their steps take.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "sample_cases.h"
#include "simulate/simulator.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf::simulator {
namespace {

/// The first steps of a setting: they stand for the tracer.
const int kTracedSteps = rounds(4);
constexpr double kBackwardRatio = 2;
/// Simulations of a step, whose median counts.
constexpr int kSeeds = 25;

struct Setting {
  int microbatches = 0;
  int cap = 0;                   // 0: simple
  std::vector<double> stage_ms;  // forward; one value: of every stage
  std::string model = "sleep";   // else one of the samples
};

/// Draws what no setting of a person's choice would show.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  /// Stages of 5 to 20 ms, up to 4 microbatches a rank, every second time as many in flight as
  /// ranks or up to twice as many.
  Setting draw(int ranks) {
    Setting setting;
    setting.microbatches = between(ranks, 4 * ranks);
    if (between(0, 1) == 1) setting.cap = between(ranks, 2 * ranks + 2);
    for (int stage = 0; stage < ranks; ++stage) {
      setting.stage_ms.push_back(0.1 * between(50, 200));
    }
    return setting;
  }
  /// For a model that computes: its batch has 64 rows or more, and 64 can be halved.
  Setting draw_for(const std::string& model, int ranks) {
    Setting setting;
    setting.model = model;
    setting.microbatches = 1 << between(1, 4);
    if (between(0, 1) == 1) setting.cap = between(ranks, 2 * ranks + 2);
    return setting;
  }

 private:
  int between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::mt19937_64 random_;
};

constexpr const char* kModels[] = {"t5", "gpt", "unet", "recommender"};

std::vector<Setting> drawn_settings(std::uint64_t seed, int ranks) {
  const int each = rounds(6);
  Dice dice(seed + static_cast<std::uint64_t>(ranks));
  std::vector<Setting> settings;
  for (int i = 0; i < each; ++i) settings.push_back(dice.draw(ranks));
  // More ranks than that share the cores of one machine: nobody trains so.
  constexpr int kMostComputing = 4;
  for (const char* model : kModels) {
    for (int i = 0; i < (brief() ? 0 : 2) && ranks <= kMostComputing; ++i) {
      settings.push_back(dice.draw_for(model, ranks));
    }
  }
  return settings;
}

/// "sleep.p4_m8_interleaved6_ms12-8-16-10".
std::string name_of(const Setting& setting) {
  auto name =
      setting.model + ".p" + std::to_string(size()) + "_m" + std::to_string(setting.microbatches);
  name += setting.cap == 0 ? "_simple" : "_interleaved" + std::to_string(setting.cap);
  if (setting.model != "sleep") return name;
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

/// What the plan promises, made from modules and messages that were timed.
template <class Case>
Comparison train(int steps) {
  torch::manual_seed(1);
  const auto batch = Case::draw();
  auto net = Case::make();
  DistributedModel model(net);
  DistributedOptimizer optimizer(
      model, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(1e-3)));
  auto run = step([&](const std::vector<Tensor>& slices) {
    const auto loss = Case::loss(model, slices);
    model.backward(loss);
    return loss;
  });
  std::vector<double> durations;
  for (int i = 0; i < kTracedSteps + steps; ++i) {
    optimizer.zero_grad();
    barrier();
    const double duration = microseconds([&] { run(batch); }) / 1000;
    if (i >= kTracedSteps) durations.push_back(duration);
    optimizer.step();
  }
  return {1000 * model.plan().summary()->chosen.step_seconds, median(durations)};
}

Comparison compare(const Setting& setting, const simulate::Machine& machine, int steps) {
  if (setting.model == "t5") return train<T5Case>(steps);
  if (setting.model == "gpt") return train<GptCase>(steps);
  if (setting.model == "unet") return train<UNetCase>(steps);
  if (setting.model == "recommender") return train<RecommenderCase>(steps);
  const auto done =
      run_sleeping_steps(times_of(setting), setting.microbatches, kTracedSteps + steps);
  std::vector<double> durations;
  for (int i = kTracedSteps; i < kTracedSteps + steps; ++i) {
    durations.push_back(done[i].milliseconds);
  }
  return {predict(setting, trace_of(done), machine), median(durations)};
}

/// Who says which setting is measured.
enum class Chosen { kDrawn, kAsked };

void add_row(Report& report, Chosen chosen, const Setting& setting, const Comparison& result) {
  char note[80];
  std::snprintf(note, sizeof note, "predicted %.1f ms, measured %.1f ms", result.predicted,
                result.measured);
  const char* group = chosen == Chosen::kDrawn ? "drawn." : "asked.";
  report.add("step_error." + (group + name_of(setting)), result.error(), "1", note);
}

/// Of all that was drawn, as far as it was measured: sleeping chains, and models that compute.
void add_means(Report& report) {
  const auto add = [&](const std::string& kind, const std::vector<double>& errors) {
    if (errors.empty()) return;
    const auto note = std::to_string(errors.size()) + " settings";
    report.add("step_error." + kind + ".mean", mean(errors), "1", note + "; aim: at most 0.05");
    report.add("step_error." + kind + ".max", *std::max_element(errors.begin(), errors.end()), "1",
               note);
  };
  add("sleep", report.values("step_error.drawn.sleep."));
  std::vector<double> computing;
  for (const char* model : kModels) {
    const auto errors = report.values(base::concat("step_error.drawn.", model, "."));
    computing.insert(computing.end(), errors.begin(), errors.end());
  }
  add("computing", computing);
}

void add_seed(Report& report, std::uint64_t seed, int ranks) {
  report.add("seed.p" + std::to_string(ranks), static_cast<double>(seed), "1",
             "--seed draws the same settings");
}

struct Options {
  int steps = rounds(9);
  std::uint64_t seed = 0;  // 0: a new one
  Setting own;             // instead of drawn ones
  std::string schedule;
};

/// Empty if only the help was wanted.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  CLI::App app("Simulated step times against real ones, with modules that sleep",
               "smp perf simulator");
  app.footer(
      "--ranks P starts P ranks; without it 2, 4 and 8. Without a setting some are drawn, by "
      "--seed or a new one.");
  app.add_option("--seed", options.seed, "of the settings (default: a new one)");
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

bool is_asked(const Options& options) {
  const auto& own = options.own;
  return own.microbatches != 0 || own.cap != 0 || !own.stage_ms.empty() ||
         !options.schedule.empty();
}

/// The user's setting, or those of the seed.
std::vector<Setting> chosen_settings(const Options& options, std::uint64_t seed, int ranks) {
  if (!is_asked(options)) return drawn_settings(seed, ranks);
  auto own = options.own;
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
  if (setting.model != "sleep") {
    config.trace_repeats = rounds(5);
    config.plan_cache = "off";
  }
  return config;
}

void run(int argc, char** argv) {
  const auto options = parse(argc, argv);
  if (!options) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() > 1, "perf simulator needs at least 2 ranks; give --ranks");
  auto report = report_of_ranks(mpi.rank().value(), "simulator", Report::Earlier::kKept);
  double cost = 0;
  std::uint64_t seed = 0;
  in_session(argc, argv, config_of({1, 0, {10}}), [&] {
    cost = message_ms(options->steps);
    seed = broadcast(options->seed != 0 ? options->seed : std::random_device()(), 0);
  });
  if (report) report->add("message.p" + std::to_string(mpi.size()), 1000 * cost, "us");
  const auto chosen = is_asked(*options) ? Chosen::kAsked : Chosen::kDrawn;
  for (const auto& setting : chosen_settings(*options, seed, mpi.size())) {
    in_session(argc, argv, config_of(setting), [&] {
      const auto result = compare(setting, machine_with(cost), options->steps);
      if (report) add_row(*report, chosen, setting, result);
    });
  }
  if (!report) return;
  if (chosen == Chosen::kDrawn) add_seed(*report, seed, mpi.size());
  add_means(*report);
  report->finish();
}

const Program program{"simulator", run};

}  // namespace
}  // namespace smp::perf::simulator
